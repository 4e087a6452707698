// The overview answers in two seconds: is everything as it should be?

import { Project, Task } from "./api";
import { glyph, strip } from "./cells";
import { h, VNode } from "./dom";
import { eventList, isNotable, pathOf, sentence, statusWord, taskWords } from "./views";
import { count, mayCreate, world } from "./world";

const groups: { title: string; has: string[] }[] = [
  { title: "Needs attention", has: ["failed", "backing-off", "blocked", "held"] },
  { title: "Converging", has: ["converging"] },
  { title: "Steady", has: ["converged", "frozen", "paused", "stopped"] },
];

/** While a pointer is over the list, rows keep their place. */
let still = false;
let order: Map<string, number> | null = null;

export const view = { filter: "", at: -1 };

/** matches returns the projects that contain the search text in their name, organization or services. */
export function matches(text: string): Project[] {
  const want = text.trim().toLowerCase();
  return [...world.projects.values()].filter((p) => !want || [p.name, p.organization_name, ...p.services.map((s) => s.name)].some((w) => w.toLowerCase().includes(want)));
}

/** visible returns the projects in the order in which they are shown. */
export function visible(): Project[] {
  const rank = (p: Project) => groups.findIndex((g) => g.has.includes(p.status));
  const all = matches(view.filter);
  if (still && order) return all.sort((a, b) => (order!.get(a.id) ?? 1e9) - (order!.get(b.id) ?? 1e9));
  all.sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name) || a.organization_name.localeCompare(b.organization_name));
  order = new Map(all.map((p, i) => [p.id, i]));
  return all;
}

export function overviewView(): VNode {
  if (world.projects.size === 0) return emptyView();
  const all = visible();
  const tasks = new Map<string, Task>();
  for (const t of world.tasks.values()) if (t.state === "active" && t.task !== "freeze" && t.origin === "user") tasks.set(t.project, t);
  const organizations = new Set([...world.projects.values()].map((p) => p.organization));
  let title = "";
  return h("main", { key: "overview", class: "overview" },
    h("section", { "aria-label": "Projects", onpointerenter: () => { still = true; }, onpointerleave: () => { still = false; } },
      h("div", { class: "headline" }, h("h1", null, "Projects"), mayCreate() && h("a", { class: "button", href: "/projects/new" }, "New project")),
      all.length === 0 && h("p", { key: "none", class: "quiet" }, `No project or service contains “${view.filter}”.`),
      all.flatMap((p, i) => {
        const g = still ? "" : groups.find((g) => g.has.includes(p.status))?.title ?? "";
        const heading = g && g !== title ? h("h2", { key: "g" + g }, g) : null;
        title = g;
        return [heading, row(p, tasks.get(p.id), organizations.size > 1, i === view.at)];
      })),
    h("aside", { "aria-label": "Recent events" }, h("h2", null, "Recent events"), eventList(world.events.filter(isNotable).slice(0, 25), true)));
}

function row(p: Project, task: Task | undefined, withOrganization: boolean, isAt: boolean): VNode {
  const goal = p.services.reduce((n, s) => n + s.goal, 0);
  const running = p.services.reduce((n, s) => n + s.running, 0);
  const share = task && task.progress.total > 0 ? task.progress.done / task.progress.total : 0;
  return h("a", { key: p.id, class: "row" + (isAt ? " at" : ""), href: pathOf(p), "data-project": p.name, "data-status": p.status },
    h("span", { class: "name" }, glyph(p.status), h("b", null, p.name), withOrganization && h("span", { class: "quiet" }, p.organization_name)),
    h("span", { class: "slots" }, strip(p), h("span", { class: "num quiet" }, `${running}/${goal}`)),
    h("span", { class: "state" },
      h("span", null, task ? taskWords(task) : statusWord[p.status]),
      task && task.progress.total > 0 && h("span", { class: "track", "aria-hidden": "true" }, h("i", { style: { width: `${Math.round(share * 100)}%` } })),
      task && task.progress.total > 0 && h("span", { class: "num quiet" }, `${Math.round(share * 100)} %`)),
    p.status !== "converged" && p.reason && h("span", { class: "reason" }, ...sentence(p.reason)));
}

function emptyView(): VNode {
  return h("main", { key: "empty", class: "empty" },
    h("h1", null, "Nothing runs here yet"),
    h("p", null, "Describe what should run in a file, and Mariposa starts it, keeps it running and shows it here."),
    mayCreate() && h("p", null, h("a", { class: "button", href: "/projects/new" }, "Paste a manifest"), " or use the command line:"),
    h("ol", null,
      h("li", null, "Write a manifest, for example ", h("code", null, "shop.yaml"), ":", h("pre", null, "services:\n  web:\n    image: nginx:1.27\n    scale: 3\n    ports: [80]\n")),
      h("li", null, "Create the project:", h("pre", null, "mariposa project create shop -m shop.yaml --wait")),
      h("li", null, "Scale it, here or there:", h("pre", null, "mariposa project scale web=5"))));
}

/** summary says in the header what is going on. */
export function summary(): VNode {
  const n = { converging: 0, trouble: 0 };
  let worst = groups[0].has.length - 1; // the statuses are sorted
  for (const p of world.projects.values()) {
    if (p.status === "converging") n.converging++;
    const at = groups[0].has.indexOf(p.status);
    if (at >= 0) n.trouble++;
    if (at >= 0 && at < worst) worst = at;
  }
  const parts = [];
  if (n.trouble) parts.push(h("span", { key: "t" }, glyph(groups[0].has[worst]), `${n.trouble} need${n.trouble === 1 ? "s" : ""} attention`));
  if (n.converging) parts.push(h("span", { key: "c" }, glyph("converging"), `${n.converging} converging`));
  if (parts.length === 0 && world.projects.size > 0) parts.push(h("span", { key: "o" }, glyph("converged"), `${count(world.projects.size, "project")}, all steady`));
  return h("span", { class: "summary", role: "status" }, parts);
}

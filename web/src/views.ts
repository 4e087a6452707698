// Parts that several pages share: events, tasks, and links to projects.

import { clock, Event, get, Project, send, Task } from "./api";
import { glyph } from "./cells";
import { Child, h, VNode } from "./dom";
import { ask } from "./sheet";
import { ago, count, may, span, world } from "./world";

export const pathOf = (p: Project): string => `/projects/${encodeURIComponent(p.organization_name)}/${encodeURIComponent(p.name)}`;

export const statusWord: Record<string, string> = {
  converged: "converged", converging: "converging", "backing-off": "backing off", blocked: "blocked", held: "held", frozen: "frozen", paused: "paused", failed: "failed", stopped: "stopped",
};

/** sentence returns a reason with its commands marked. What it names in a project is a link; null: only
 * what belongs to no project is; undefined: nothing is. */
export function sentence(reason: string, of?: Project | null): Child[] {
  return reason.split(/(`[^`]+`)/).flatMap((part): Child[] => (part.startsWith("`") ? [h("code", null, part.slice(1, -1))] : of === undefined ? [part] : linked(part, of)));
}

/** Names have these characters. What is part of an address or a path is no name. */
const names = /(?<![\p{L}\p{N}_.\-/:@=])[a-z0-9][a-z0-9_.-]*(?![\p{L}\p{N}_/@=]|:\S|[.-][\p{L}\p{N}])/giu;

/** Words of the sentences themselves. A service may have such a name, but they hardly mean it. */
const words = new Set(("a all an and another are as at be because been but by can cannot check checks count created down ended failed for from frozen goal has have healthy if in instance instances is it its " +
  "left lost manifest more network no node nodes none not now of on one only or other out over pace project removed running s scale second seconds service services since slot so started starting starts stop stopped stops successor " +
  "task tasks that the them there they this till times to turn unhealthy unknown until up update version volume wait waits was while will with").split(" "));

/** linked makes the names in a text links to what they name. */
function linked(text: string, of: Project | null): Child[] {
  const parts: Child[] = [];
  let end = 0;
  for (const m of text.matchAll(names)) {
    const name = m[0].replace(/[.-]+$/, "");
    const link = linkTo(name, of);
    if (!link) continue;
    parts.push(text.slice(end, m.index), link);
    end = m.index + name.length;
  }
  return [...parts, text.slice(end)];
}

/** linkTo returns a link to what has a name; null: the page does not know it. */
function linkTo(name: string, of: Project | null): VNode | null {
  const to = (href: string, selector: string) => h("a", { href, "data-seek": selector }, name);
  if (words.has(name.toLowerCase())) return null;
  if (of && of.id === world.open && /[.-]/.test(name)) {
    for (const i of world.instances.values()) if (i.name === name || i.slot === name) return h("a", { href: pathOf(of), "data-instance": i.id }, name);
  }
  if (of?.services.some((s) => s.name === name)) return to(pathOf(of), `[data-service="${CSS.escape(name)}"]`);
  if (world.tasks.has(name)) return to("/queue", `[data-task="${CSS.escape(name)}"]`);
  if (world.me?.admin && world.isNode(name)) return to("/nodes", `[data-node="${CSS.escape(name)}"]`);
  return null;
}

/** time shows a time of day, where the person is. */
export const time = (t: string): string => new Date(Date.parse(t)).toLocaleTimeString([], { hour12: false });

/** isNotable leaves out what a person need not see at a glance: the steps of tasks. */
export function isNotable(e: Event): boolean {
  const [noun, verb] = e.kind.split(".");
  if (noun === "instance") return verb === "failed";
  if (noun === "version") return verb === "created";
  return noun !== "project" || verb === "created" || verb === "deleted";
}

/** eventList shows events, newest first. */
export function eventList(all: Event[], withProject: boolean): VNode {
  const events = all.filter((e) => !e.kind.endsWith(".progress")); // tasks show it
  if (events.length === 0) return h("p", { class: "quiet" }, "Nothing has happened yet.");
  return h("ol", { class: "events" }, events.map((e) => h("li", { key: e.revision, memo: e }, () => {
    const [noun, verb] = e.kind.split(".");
    const number = (e.object as { number?: number } | null)?.number;
    const subject = e.instance_name || (noun === "version" && number ? `version ${number}` : "") || (noun === "task" ? taskWords(e.object as Task) : "") || e.service_name || e.node_name || (noun === "project" ? e.project_name : noun);
    const project = world.projects.get(e.project);
    return [
      h("time", { datetime: e.time }, time(e.time)),
      h("span", { class: "what" },
        h("b", null, subject), " ", verb.replace(/[-_]/g, " "), noun === "instance" && e.node_name && ` on ${e.node_name}`,
        withProject && e.project_name && noun !== "project" && [" in ", project ? h("a", { href: pathOf(project) }, e.project_name) : e.project_name],
        e.actor && e.actor !== "mariposa" && !e.actor.startsWith("node ") && ` by ${e.actor}`,
        e.reason && h("span", { class: "quiet" }, " ", ...sentence(e.reason, project ?? null))),
    ].flat() as Child[];
  })));
}

/** taskWords names a task: scale web, db. */
export function taskWords(t: Task | null): string {
  if (!t?.task) return "";
  const verb = t.task === "reprovision" ? (t.origin === "mariposa" ? "repair" : "roll out") : t.task;
  const version = t.task === "reprovision" && t.number ? ` version ${t.number}` : "";
  const what = t.node_name ? ` node ${t.node_name}` : t.services?.length ? " " + (t.services.length > 3 ? count(t.services.length, "service") : t.services.join(", ")) : "";
  return verb + (version ? version + (what ? " of" + what : "") : what);
}

const opened = new Map<string, Task>();

/** taskList shows open tasks, with their progress. */
export function taskList(tasks: Task[], withProject: boolean, redraw: () => void): VNode {
  return h("ul", { class: "tasks" }, tasks.map((t) => taskView(t, withProject, redraw)));
}

function taskView(t: Task, withProject: boolean, redraw: () => void): VNode {
  const project = world.projects.get(t.project);
  const { done, total } = t.progress;
  const share = total > 0 ? done / total : 0;
  const steps = opened.get(t.id);
  const eta = t.eta ? Date.parse(t.eta) - clock.now() : 0;
  const mayCancel = t.origin === "user" && t.task !== "freeze" && may(t.project, "operator");
  return h("li", { key: t.id, class: "task", "data-task": t.id },
    h("div", { class: "line" },
      h("span", { class: "name" }, glyph(t.state), h("b", null, taskWords(t)), withProject && project && h("a", { href: pathOf(project) }, project.name)),
      h("span", { class: "progress" },
        t.state === "active" && total > 0 && h("span", { class: "track", role: "progressbar", "aria-valuenow": done, "aria-valuemin": 0, "aria-valuemax": total, "aria-label": "Progress" }, h("i", { style: { width: `${Math.round(share * 100)}%` } })),
        h("span", { class: "num" }, t.state === "queued" ? "queued" : total > 0 ? `${done} of ${total}` : t.task === "freeze" ? "until you thaw" : "begins"),
        eta > 0 && h("span", { class: "quiet num" }, `about ${span(eta)} left`)),
      h("span", { class: "by quiet" }, t.origin === "mariposa" ? "Mariposa" : t.author, ", ", ago(t.created)),
      h("span", { class: "acts" },
        h("button", { class: "plain", "aria-expanded": steps ? "true" : "false", onclick: () => void toggle(t, redraw) }, steps ? "Hide steps" : "Steps"),
        mayCancel && h("button", { class: "plain", onclick: () => askCancel(t) }, "Cancel…"))),
    t.waits && h("p", { class: "reason" }, ...sentence(t.waits, project ?? null)),
    steps && stepList(steps));
}

async function toggle(t: Task, redraw: () => void): Promise<void> {
  if (opened.delete(t.id)) return redraw();
  opened.set(t.id, await get<Task>(`/v1/queue/${t.id}`));
  redraw();
  void refreshSteps(t.project, redraw); // what changed meanwhile was not noted
}

let refreshing = false;
const stale = new Set<string>(); // projects

/** refreshSteps reads the steps that are shown again, after a change in their project. */
export async function refreshSteps(project: string, redraw: () => void): Promise<void> {
  if (![...opened.values()].some((t) => t.project === project)) return;
  stale.add(project);
  if (refreshing) return;
  refreshing = true;
  while (stale.size > 0) {
    await new Promise((r) => setTimeout(r, 150)); // many changes at once are one request
    const all = [...opened.values()].filter((t) => stale.has(t.project));
    stale.clear();
    for (const { id } of all) {
      const t = await get<Task>(`/v1/queue/${id}`).catch(() => null);
      if (t && opened.has(id)) opened.set(id, t);
    }
    redraw();
  }
  refreshing = false;
}

function stepList(t: Task): VNode {
  const steps = t.steps ?? [];
  if (steps.length === 0) return h("p", { class: "quiet" }, "No step has started yet.");
  return h("ol", { class: "steps", tabindex: 0, "aria-label": "Steps, newest first" }, steps.map((s, i) => h("li", { key: s.revision + s.instance_name + i },
    h("time", { datetime: s.at }, time(s.at)), h("span", null, h("b", null, s.step), " ", s.instance_name, s.node_name && h("span", { class: "quiet" }, ` on ${s.node_name}`)),
    h("span", { class: "quiet" }, s.result, s.reason && [": ", s.reason].join("")))));
}

interface Ended { continue_with?: string; undo_with?: string }

function askCancel(t: Task): void {
  ask({
    title: `Cancel: ${taskWords(t)}`, says: () => whatCancelDoes(world.tasks.get(t.id)), verb: "Cancel the task",
    run: async () => {
      const r = await send<Ended>("DELETE", `/v1/queue/${t.id}`);
      const after: Child[] = ["The task is cancelled."];
      if (r.continue_with) after.push(h("span", null, "Continue later: ", h("code", null, r.continue_with)));
      if (r.undo_with) after.push(h("span", null, "Undo what it did: ", h("code", null, r.undo_with)));
      return after;
    },
  });
}

/** whatCancelDoes says what happens to a task as it is now; it may begin or end while people read. */
function whatCancelDoes(t: Task | undefined): Child[] {
  if (!t) return ["This task has ended meanwhile, so there is nothing to cancel."];
  if (t.state === "queued") return ["This task has not started. Cancelling drops its change. Nothing is frozen, and nothing that runs is touched."];
  const scope = t.services.length ? t.services.join(", ") : "the project";
  const { done, total } = t.progress;
  return [
    `${done} of ${total} steps are done. Cancelling keeps these and starts no other step. What is half made is finished or removed.`,
    `After that, ${scope} is frozen: Mariposa changes nothing there, not even to repair it, until you thaw it. The goal stays, so a thaw continues where this stopped.`,
  ];
}

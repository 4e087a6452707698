// A project: its services with a cell per instance, its queue and its events.

import { Instance, Project, Role, send, Service } from "./api";
import { balancersView } from "./balancers";
import { cellsOf, describe, glyph, grid, shapeOf } from "./cells";
import { Child, h, VNode } from "./dom";
import { chartsView } from "./charts";
import { editorView } from "./editor";
import { graphView } from "./graph";
import { logsView } from "./logs";
import { projectPeopleView } from "./people";
import { panelView, showInstance, shownInstance } from "./panel";
import { moreMenu } from "./projectactions";
import { ask, explain } from "./sheet";
import { timelineView } from "./timeline";
import { eventList, pathOf, sentence, statusWord, taskList } from "./views";
import { valuesView } from "./values";
import { versionsView } from "./versions";
import { count, may, world } from "./world";

const hovered = new Map<string, string>();
const drafts = new Map<string, string>();
let scaleError = { service: "", text: "" };

export type Tab = "" | "change" | "charts" | "graph" | "timeline" | "versions" | "values" | "logs" | "people";

const tabs: { tab: Tab; name: string; role: Role }[] = [
  { tab: "", name: "Services", role: "viewer" }, { tab: "graph", name: "Graph", role: "viewer" }, { tab: "timeline", name: "Timeline", role: "viewer" }, { tab: "charts", name: "Charts", role: "viewer" }, { tab: "versions", name: "Versions", role: "viewer" }, { tab: "values", name: "Values", role: "viewer" }, { tab: "logs", name: "Logs", role: "viewer" }, { tab: "people", name: "People", role: "viewer" }, { tab: "change", name: "Change", role: "deployer" },
];

export function projectView(p: Project, tab: Tab, redraw: () => void, go: (path: string) => void): VNode {
  return h("main", { key: "project" + p.id, class: "project" },
    headView(p, go),
    h("nav", { class: "tabs", "aria-label": p.name }, tabs.filter((t) => may(p.id, t.role)).map((t) => h("a", { key: t.tab, href: pathOf(p) + (t.tab && "/" + t.tab), "aria-current": t.tab === tab ? "page" : null }, t.name))),
    tab === "" && servicesView(p, redraw),
    tab === "change" && h("section", { key: "change", "aria-label": "Change" }, may(p.id, "deployer") ? editorView(go) : h("p", { class: "quiet" }, "You need the deployer role to change this project.")),
    tab === "charts" && h("section", { key: "charts", "aria-label": "Charts" }, chartsView(p)),
    tab === "graph" && h("section", { key: "graph", "aria-label": "Graph" }, graphView(p)),
    tab === "timeline" && h("section", { key: "timeline", "aria-label": "Timeline" }, timelineView(p, (id) => void showInstance(id, redraw), redraw)),
    tab === "logs" && h("section", { key: "logs", "aria-label": "Logs" }, logsView(p, (service) => `${pathOf(p)}/logs/${service}`)),
    tab === "versions" && h("section", { key: "versions", "aria-label": "Versions" }, versionsView(p, redraw)),
    tab === "values" && h("section", { key: "values", "aria-label": "Values" }, valuesView(p, redraw)),
    tab === "people" && h("section", { key: "people", "aria-label": "People" }, projectPeopleView(p)),
    panelView(p, redraw));
}

function headView(p: Project, go: (path: string) => void): VNode {
  return h("header", { class: "head" },
    h("div", null,
      h("p", { class: "crumbs" }, h("a", { href: "/" }, "Projects"), h("span", { class: "quiet" }, " / ", p.organization_name)),
      h("h1", null, p.name),
      h("p", { class: "state" }, glyph(p.status), statusWord[p.status], h("span", { class: "quiet" }, ` · ${count(p.services.length, "service")}`)),
      p.status !== "converged" && p.reason && h("p", { class: "reason" }, ...sentence(p.reason, p))),
    actions(p, go));
}

function servicesView(p: Project, redraw: () => void): VNode {
  const by = new Map<string, Instance[]>();
  for (const i of world.instances.values()) {
    if (!i.managed) continue;
    const there = by.get(i.service_name);
    if (there) there.push(i);
    else by.set(i.service_name, [i]);
  }
  const tasks = [...world.tasks.values()].filter((t) => t.project === p.id).sort((a, b) => b.created.localeCompare(a.created));
  return h("div", { key: "services" },
    h("section", { class: "services", "aria-label": "Services" },
      p.services.length === 0 && h("p", { key: "none", class: "quiet" }, "This project has no services."),
      p.services.map((s) => serviceView(p, s, by.get(s.name) ?? [], redraw))),
    unmanagedView(p, redraw),
    balancersView(p),
    h("section", { "aria-label": "Queue" },
      h("h2", null, "Queue"),
      tasks.length ? taskList(tasks, false, redraw) : h("p", { class: "quiet" }, "No task is open.")),
    h("section", { "aria-label": "Events" },
      h("h2", null, "Events"),
      eventList(world.events.filter((e) => e.project === p.id).slice(0, 30), false)));
}

/** unmanagedView shows the instances that belong to no service. */
function unmanagedView(p: Project, redraw: () => void): VNode | null {
  const all = [...world.instances.values()].filter((i) => !i.managed).sort((a, b) => a.name.localeCompare(b.name));
  if (all.length === 0) return null;
  return h("section", { key: "unmanaged", "aria-label": "Unmanaged instances" },
    h("h2", null, "Unmanaged instances"),
    h("p", { class: "quiet" }, "They belong to no service. Mariposa does not repair, replace or update them."),
    h("ul", { class: "unmanaged" }, all.map((i) => h("li", { key: i.id, "data-unmanaged": i.name },
      h("span", { class: "name" }, h("i", { class: "cell " + shapeOf(i), "aria-hidden": "true" }), h("button", { class: "link", onclick: () => void showInstance(i.id, redraw) }, i.name)),
      h("span", null, i.state),
      h("span", { class: "quiet" }, i.node_name && `on ${i.node_name}`),
      i.reason ? h("p", { class: "reason" }, ...sentence(i.reason, p)) : null))));
}

function serviceView(p: Project, s: Service, instances: Instance[], redraw: () => void): VNode {
  const cells = cellsOf(s, instances);
  const name = hovered.get(s.name);
  return h("article", { key: s.name, class: "service", "data-service": s.name, "data-status": s.status, "aria-label": s.name },
    h("div", { class: "title" },
      h("h2", null, glyph(s.status), s.name),
      h("span", { class: "quiet" }, s.status === "converged" ? `version ${s.number}` : `${statusWord[s.status]}, version ${s.number}`)),
    h("div", { class: "picture" },
      world.openLoaded
        ? grid(s.name, cells, shownInstance(), (id) => showInstance(id, redraw), (text) => {
          hovered.set(s.name, text);
          redraw();
        })
        : h("p", { class: "quiet" }, "Loading instances…"),
      h("p", { class: "counts num" }, name || `${count(s.goal, "instance")} wanted: ${describe(cells)}`),
      s.reason && s.status !== "converged" && h("p", { key: "why", class: "reason" }, ...sentence(s.reason, p)),
      s.reason_code === "needs-metadata" && may(p.id, "deployer") && h("p", { key: "values" }, h("a", { href: pathOf(p) + "/values" }, "Set the values")),
      s.status === "converged" && s.outdated > 0 && h("p", { key: "old", class: "reason" }, ...sentence(s.reason, p)),
      s.status === "held" && heldView(p, s),
      s.status === "failed" && s.reason_code.startsWith("rollout-") && stoppedView(p, s)),
    may(p.id, "operator") && p.goal !== "deleted" ? scaleView(p, s, redraw) : h("span", { class: "num scale quiet" }, `scale ${s.goal}`));
}

/** scaleView changes the scale of a service, and says before what that does. */
function scaleView(p: Project, s: Service, redraw: () => void): VNode {
  const key = p.id + s.name;
  const draft = drafts.get(key);
  const to = draft === undefined ? s.goal : Number(draft);
  const valid = draft !== "" && Number.isInteger(to) && to >= 0;
  const set = (text: string) => {
    if (text !== "" && Number(text) === s.goal) drafts.delete(key);
    else drafts.set(key, text);
    scaleError = { service: "", text: "" };
    redraw();
  };
  const apply = async () => {
    try {
      await send("PUT", `/v1/projects/${p.id}/services/${s.id}/state`, { action: "scale", scale: to });
      drafts.delete(key);
    } catch (e) {
      scaleError = { service: key, text: explain(e) };
    }
    redraw();
  };
  const step = (by: number) => set(String(Math.max(0, Number(drafts.get(key) ?? s.goal) + by)));
  const more = to - s.goal;
  return h("form", {
    class: "scale", "aria-label": `Scale of ${s.name}`,
    onsubmit: (e: Event) => {
      e.preventDefault();
      if (valid && more !== 0) void apply();
    },
  },
  h("div", { class: "stepper" },
    h("button", { type: "button", "aria-label": "One fewer", disabled: !valid || to <= 0, onclick: () => step(-1) }, "−"),
    h("input", { class: "num", inputmode: "numeric", "aria-label": `Instances of ${s.name}`, value: draft ?? String(s.goal), oninput: (e: Event) => set((e.target as HTMLInputElement).value.trim()) }),
    h("button", { type: "button", "aria-label": "One more", disabled: !valid, onclick: () => step(1) }, "+")),
  draft !== undefined && !valid && h("p", { class: "error" }, "Enter a number."),
  draft !== undefined && valid && more !== 0 && h("p", { key: "says" }, more > 0 ? `${count(more, "instance")} will start.` : `${count(-more, "instance")} will stop.`),
  scaleError.service === key && h("p", { key: "error", class: "error", role: "alert" }, scaleError.text),
  draft !== undefined && h("div", { key: "buttons", class: "buttons" },
    h("button", { type: "button", class: "plain", onclick: () => set(String(s.goal)) }, "Discard"),
    h("button", { type: "submit", disabled: !valid || more === 0 }, valid && more !== 0 ? `Scale to ${to}` : "Scale")));
}

function heldView(p: Project, s: Service): VNode | null {
  if (!may(p.id, "deployer")) return null;
  const act = (body: object) => async () => void (await send("PUT", `/v1/projects/${p.id}/state`, body));
  const left = s.outdated;
  return h("div", { class: "buttons held" },
    h("button", {
      onclick: () => ask({
        title: `Continue the rollout of ${s.name}`, verb: "Continue",
        says: [`${count(left, "instance")} of ${s.name} still run an earlier version. Mariposa replaces them with version ${s.number}, as gently as the manifest says.`],
        run: act({ action: "reprovision", services: [s.name] }),
      }),
    }, "Continue"),
    left > 1 && h("button", {
      onclick: () => ask({
        title: `Continue the rollout of ${s.name} by one`, verb: "Continue by 1",
        says: [`One more instance of ${s.name} is replaced with version ${s.number}. Then the rollout is held again, with ${count(left - 1, "instance")} left.`],
        run: act({ action: "reprovision", services: [s.name], count: 1 }),
      }),
    }, "Continue by 1"),
    h("button", {
      onclick: () => ask({
        title: `Revert ${p.name}`, verb: "Revert",
        says: [`Mariposa goes back to the last version that was rolled out completely. The ${count(Math.max(0, s.goal - left), "instance")} of ${s.name} at version ${s.number} are replaced.`],
        run: act({ action: "revert" }),
      }),
    }, "Revert"));
}

/** stoppedView offers what can be done about a rollout that failed too often. */
function stoppedView(p: Project, s: Service): VNode | null {
  if (!may(p.id, "deployer")) return null;
  const act = (body: object) => async () => void (await send("PUT", `/v1/projects/${p.id}/state`, body));
  return h("div", { class: "buttons held" },
    h("button", {
      onclick: () => ask({
        title: `Retry the rollout of ${s.name}`, verb: "Retry",
        says: [`Mariposa tries again to bring ${s.name} to version ${s.number}. The rollout stops again if it fails as often as the manifest permits.`],
        run: act({ action: "converge", services: [s.name] }),
      }),
    }, "Retry"),
    s.number > 1 && h("button", {
      onclick: () => ask({
        title: `Revert ${p.name}`, verb: "Revert",
        says: [`Mariposa goes back to the last version that was rolled out completely. Instances at version ${s.number} are replaced.`],
        run: act({ action: "revert" }),
      }),
    }, "Revert"));
}

interface Act { label: string; role: Role; title: string; verb: string; says: Child[]; body: object; when: boolean }

/** actionsOf lists what the person can do with a project now, and what each would do. */
function actionsOf(p: Project): Act[] {
  const running = p.services.reduce((n, s) => n + s.running, 0);
  const wanted = p.services.reduce((n, s) => n + s.goal, 0);
  const isStopped = p.goal === "stopped";
  const rollout = p.services.some((s) => s.status === "converging" && s.outdated > 0);
  const all: Act[] = [
    { label: "Start", role: "operator", when: isStopped, title: `Start ${p.name}`, verb: "Start", body: { action: "start" }, says: [`${count(wanted, "instance")} of ${count(p.services.length, "service")} will start, in the order of their dependencies.`] },
    { label: "Thaw", role: "operator", when: p.services.some((s) => s.frozen), title: `Thaw ${p.name}`, verb: "Thaw", body: { action: "thaw" }, says: ["Mariposa converges again to the goal, and repairs what has failed meanwhile. Tasks that wait for the thaw begin.", ...p.services.filter((s) => s.frozen && s.reason).map((s) => `${s.name}: ${s.reason}.`)] },
    { label: "Freeze", role: "operator", when: !isStopped && p.services.some((s) => !s.frozen), title: `Freeze ${p.name}`, verb: "Freeze", body: { action: "freeze" }, says: ["Mariposa changes nothing in this project until you thaw it: nothing is started, stopped or repaired. What runs keeps running.", "Open tasks of this project end."] },
    { label: "Resume", role: "operator", when: p.paused, title: `Resume the rollouts of ${p.name}`, verb: "Resume", body: { action: "resume" }, says: ["The rollouts continue where they were paused."] },
    { label: "Pause", role: "operator", when: rollout && !p.paused, title: `Pause the rollouts of ${p.name}`, verb: "Pause", body: { action: "pause" }, says: ["No further instance is replaced until you resume. Failed instances are still repaired."] },
    { label: "Stop", role: "operator", when: !isStopped, title: `Stop ${p.name}`, verb: "Stop", body: { action: "stop" }, says: [`${count(running, "instance")} will stop, dependents first. The manifest, the versions and the volumes stay; Start brings everything back.`] },
  ];
  return all.filter((a) => a.when && may(p.id, a.role));
}

function actions(p: Project, go: (path: string) => void): VNode | null {
  if (p.goal === "deleted") return null;
  const all = actionsOf(p);
  const more = moreMenu(p, go);
  if (all.length === 0 && !more) return null;
  return h("div", { class: "buttons" }, all.map((a) => h("button", {
    key: a.label,
    onclick: () => ask({ title: a.title, verb: a.verb, says: a.says, run: async () => void (await send("PUT", `/v1/projects/${p.id}/state`, a.body)) }),
  }, a.label + "…")), more);
}

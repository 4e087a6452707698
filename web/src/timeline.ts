// The timeline of a project: which instance was in which slot, and when. A bad version is seen at
// once: many short bars that end with a cross.

import { clock, Event, get, Instance, Project, Task } from "./api";
import { h, VNode } from "./dom";
import { explain } from "./sheet";
import { taskWords, time } from "./views";
import { world } from "./world";

interface Bar { id: string; name: string; service: string; slot: string; number: number; from: number; to: number; failed: boolean }

const maxRows = 200;
const ranges = [5, 15, 60, 360, 1440]; // minutes

let project = "";
let loaded = false;
let error = "";
let bars = new Map<string, Bar>();
let tasks = new Map<string, Task>();
let minutes = 0; // 0: as much as is known

/** loadTimeline reads the newest events of a project. */
export async function loadTimeline(id: string, redraw: () => void): Promise<void> {
  project = id;
  loaded = false;
  error = "";
  bars = new Map();
  tasks = new Map();
  minutes = 0;
  try {
    const got = await get<{ events: Event[] }>(`/v1/events?project=${id}&limit=1000`);
    if (project !== id) return;
    for (const e of got.events) addToTimeline(e);
  } catch (e) {
    error = explain(e);
  }
  loaded = true;
  redraw();
}

export function closeTimeline(): void {
  project = "";
}

/** addToTimeline applies an event, oldest first. */
export function addToTimeline(e: Event): void {
  if (!project || e.project !== project || !e.object) return;
  const noun = e.kind.split(".")[0];
  if (noun === "task") {
    const t = e.object as Task;
    if (t.task !== "freeze") tasks.set(t.id, t);
  }
  if (noun !== "instance") return;
  const i = e.object as Instance;
  if (!i.managed) return;
  const was = bars.get(i.id);
  const hasEnded = ["failed", "stopped", "destroyed"].includes(i.state);
  const at = Date.parse(e.time);
  bars.set(i.id, {
    id: i.id, name: i.name, service: i.service_name, slot: i.slot, number: i.number ?? 0, from: was?.from ?? Date.parse(i.created),
    to: hasEnded ? was?.to || (i.finished ? Date.parse(i.finished) : at) : 0, failed: (was?.failed ?? false) || i.state === "failed",
  });
}

/** all returns the bars: those of events, and those of instances that had none for a long time. */
function all(): Bar[] {
  const list = [...bars.values()];
  for (const i of world.instances.values()) {
    if (!i.managed || bars.has(i.id)) continue;
    list.push({ id: i.id, name: i.name, service: i.service_name, slot: i.slot, number: i.number ?? 0, from: Date.parse(i.created), to: i.finished ? Date.parse(i.finished) : 0, failed: i.state === "failed" });
  }
  return list;
}

const numberOf = (slot: string): number => Number(/(\d+)$/.exec(slot)?.[1] ?? 0);

export function timelineView(p: Project, open: (id: string) => void, redraw: () => void): VNode {
  if (error) return h("p", { class: "error", role: "alert" }, error);
  if (!loaded || !world.openLoaded) return h("p", { class: "quiet" }, "Loading what happened…");
  const list = all();
  if (list.length === 0) return h("p", { class: "quiet" }, "Nothing has run here yet.");
  const now = clock.now();
  const known = (now - Math.min(...[...bars.values(), ...list].map((b) => b.from))) / 60_000;
  const shown = minutes || ranges.find((r) => r >= known) || ranges[ranges.length - 1];
  const begin = now - shown * 60_000;
  const x = (t: number): number => Math.max(0, Math.min(100, ((t - begin) / (now - begin)) * 100));
  const rows = new Map<string, Bar[]>();
  for (const b of list) if (!b.to || b.to > begin) rows.set(b.slot, [...(rows.get(b.slot) ?? []), b]);
  const slots = [...rows.keys()].sort((a, b) => rows.get(a)![0].service.localeCompare(rows.get(b)![0].service) || numberOf(a) - numberOf(b));
  const services = new Map(p.services.map((s) => [s.name, s]));
  // Instances that a version does not change keep the number of an earlier one.
  const isEarlier = (b: Bar): boolean => b.number < (services.get(b.service)?.number ?? 0) && (b.to > 0 || (services.get(b.service)?.outdated ?? 0) > 0);
  const recent = [...tasks.values()].filter((t) => t.started && (!t.finished || Date.parse(t.finished) > begin));
  return h("div", { class: "timeline" },
    h("div", { class: "bar-of-controls" },
      h("p", { class: "key quiet" }, h("i", { class: "swatch" }), "version in force", h("i", { class: "swatch earlier" }), "earlier version", h("i", { class: "cell fail" }), "failed"),
      h("div", { class: "choices", role: "group", "aria-label": "Range" }, ranges.map((r) => h("button", {
        key: r, class: "plain", "aria-pressed": r === shown ? "true" : "false",
        onclick: () => {
          minutes = r;
          redraw();
        },
      }, r < 60 ? `${r} min` : `${r / 60} h`)))),
    h("div", { class: "trow ticks", "aria-hidden": "true" }, h("span"), h("div", { class: "lane" }, [0, 25, 50, 75].map((at) => h("time", { key: at, style: { left: `${at}%` } }, time(new Date(begin + (at / 100) * (now - begin)).toISOString()).slice(0, shown > 10 ? 5 : 8))), h("time", { key: "now", class: "now" }, "now"))),
    recent.length > 0 && h("div", { key: "tasks", class: "trow" }, h("span", { class: "quiet" }, "Tasks"), h("div", { class: "lane", role: "img", "aria-label": recent.map(taskWords).join("; ") }, recent.map((t) => {
      const from = x(Date.parse(t.started!));
      return h("i", { key: t.id, class: "tbar task-of", title: taskWords(t), style: { left: `${from}%`, width: `${Math.max(0.4, x(t.finished ? Date.parse(t.finished) : now) - from)}%` } });
    }))),
    slots.slice(0, maxRows).map((slot) => h("div", { key: slot, class: "trow", "data-slot": slot },
      h("span", { class: "num" }, slot),
      h("div", { class: "lane" }, rows.get(slot)!.sort((a, b) => a.from - b.from).map((b) => {
        const from = x(b.from), to = x(b.to || now);
        const text = `${b.name}, version ${b.number}, from ${time(new Date(b.from).toISOString())} ${b.to ? "to " + time(new Date(b.to).toISOString()) : "until now"}${b.failed ? ", failed" : ""}`;
        return h("button", {
          key: b.id, class: `tbar${isEarlier(b) ? " earlier" : ""}${b.failed ? " failed" : ""}`, "aria-label": text, title: text, disabled: !world.instances.has(b.id),
          style: { left: `${from}%`, width: `${Math.max(0.4, to - from)}%` }, onclick: () => open(b.id),
        }, b.failed && h("i", { class: "cell fail" }));
      })))),
    slots.length > maxRows && h("p", { key: "more", class: "quiet" }, `The first ${maxRows} of ${slots.length} slots are shown.`));
}

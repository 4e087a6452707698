// The timeline of a project: which instance was in which slot, and when. A bad version is seen at
// once: many short bars that end with a cross.

import { clock, Event, get, Instance, Project, Task } from "./api";
import { Child, h, VNode } from "./dom";
import { explain } from "./sheet";
import { taskWords, time } from "./views";
import { world } from "./world";
import { endOf, handlers, isNow, reset, showLast, showNow, spanOf, ticks, zoom } from "./zoom";

interface Bar { id: string; name: string; service: string; slot: string; number: number; from: number; to: number; failed: boolean; revision: number }
interface Mark { key: string; slot: string; at: number; shape: "fail" | "ill"; text: string }

const maxRows = 200;
const maxTaskRows = 4;
const minute = 60_000;
const ranges = [5, 15, 60, 360, 1440]; // minutes
const fitting = [0.5, 1, 2, 5, 10, 15, 30, 60, 120, 360, 720, 1440];

let project = "";
let loaded = false;
let error = "";
let bars = new Map<string, Bar>();
let marks = new Map<string, Mark>();
let tasks = new Map<string, Task>();

/** loadTimeline reads the newest events of a project. */
export async function loadTimeline(id: string, redraw: () => void): Promise<void> {
  project = id;
  loaded = false;
  error = "";
  bars = new Map();
  marks = new Map();
  tasks = new Map();
  reset();
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
  const [noun, verb] = e.kind.split(".");
  if (noun === "task") {
    const t = e.object as Task;
    if (t.task !== "freeze") tasks.set(t.id, t);
  }
  if (noun !== "instance") return;
  const i = e.object as Instance;
  if (!i.managed) return;
  const at = Date.parse(e.time);
  const end = i.finished ? Date.parse(i.finished) : at;
  addBar(i, e.revision, at);
  if (verb === "failed") mark(i, end, "fail", e.reason || "failed");
  if (verb === "unhealthy") mark(i, at, "ill", e.reason || "a health check failed");
}

/** addInstances applies what has changed of instances. */
export function addInstances(of: string, changed: { revision: number; instance: Instance }[]): void {
  if (of !== project) return;
  for (const { revision, instance } of changed) {
    if (!instance.managed) continue;
    addBar(instance, revision, clock.now());
    if (instance.state === "failed") mark(instance, instance.finished ? Date.parse(instance.finished) : clock.now(), "fail", instance.reason || "failed");
  }
}

/** addBar shows an instance as it is at a revision. If it was shown at a later one, only its failure counts. */
function addBar(i: Instance, revision: number, at: number): void {
  const was = bars.get(i.id);
  const failed = (was?.failed ?? false) || i.state === "failed";
  if (was && was.revision > revision) {
    was.failed = failed;
    return;
  }
  const hasEnded = ["failed", "stopped", "destroyed"].includes(i.state);
  const end = i.finished ? Date.parse(i.finished) : at;
  bars.set(i.id, {
    id: i.id, name: i.name, service: i.service_name, slot: i.slot, number: i.number ?? 0, from: was?.from ?? Date.parse(i.created), to: hasEnded ? was?.to || end : 0, failed, revision,
  });
}

/** mark adds a mark. An instance that is reported as failed twice has failed once. */
function mark(i: Instance, at: number, shape: Mark["shape"], why: string): void {
  const key = i.id + shape + at;
  marks.set(key, { key, slot: i.slot, at, shape, text: `${i.name}, ${time(new Date(at).toISOString())}: ${why}` });
}

/** all returns the bars: those of events, and those of instances that had none for a long time. */
function all(): Bar[] {
  const list = [...bars.values()];
  for (const i of world.instances.values()) {
    if (!i.managed || bars.has(i.id)) continue;
    const to = i.finished ? Date.parse(i.finished) : 0;
    list.push({ id: i.id, name: i.name, service: i.service_name, slot: i.slot, number: i.number ?? 0, from: Date.parse(i.created), to, failed: i.state === "failed", revision: 0 });
    if (i.state === "failed") mark(i, to, "fail", i.reason || "failed");
  }
  return list;
}

const numberOf = (slot: string): number => Number(/(\d+)$/.exec(slot)?.[1] ?? 0);
const when = (t: number): string => time(new Date(t).toISOString());

export function timelineView(p: Project, open: (id: string) => void, redraw: () => void): VNode {
  if (error) return h("p", { class: "error", role: "alert" }, error);
  if (!loaded || !world.openLoaded) return h("p", { class: "quiet" }, "Loading what happened…");
  const list = all();
  if (list.length === 0) return h("p", { class: "quiet" }, "Nothing has run here yet.");
  const now = clock.now();
  const known = now - Math.min(...list.map((b) => b.from));
  const fits = (fitting.find((r) => r * minute >= known) ?? fitting[fitting.length - 1]) * minute;
  const span = spanOf(fits), end = endOf(now), begin = end - span;
  const x = (t: number): number => ((t - begin) / span) * 100;
  const rows = new Map<string, Bar[]>();
  for (const b of list) if ((!b.to || b.to > begin) && b.from < end) rows.set(b.slot, [...(rows.get(b.slot) ?? []), b]);
  const slots = [...rows.keys()].sort((a, b) => rows.get(a)![0].service.localeCompare(rows.get(b)![0].service) || numberOf(a) - numberOf(b));
  const services = new Map(p.services.map((s) => [s.name, s]));
  // Instances that a version does not change keep the number of an earlier one.
  const isEarlier = (b: Bar): boolean => b.number < (services.get(b.service)?.number ?? 0) && (b.to > 0 || (services.get(b.service)?.outdated ?? 0) > 0);
  const seen = new Map<string, Mark[]>();
  for (const m of marks.values()) if (m.at >= begin && m.at <= end) seen.set(m.slot, [...(seen.get(m.slot) ?? []), m]);
  return h("div", { class: "timeline" }, controlsView(now, span, fits, redraw),
    h("div", {
      class: "tlanes", tabindex: 0, role: "group", "data-span": span, "data-now": isNow() ? "" : null,
      "aria-label": "Timeline. Arrow keys move in time, plus and minus zoom, Home shows everything, End returns to now.",
      ...handlers(fits, redraw),
    },
    h("div", { class: "trow ticks", "aria-hidden": "true" }, h("span"), h("div", { class: "lane" },
      ticks(begin, end).map((t) => h("time", { key: t.at, style: { left: `${x(t.at)}%` } }, t.text)), h("time", { key: "end", class: "now" }, isNow() ? "now" : ""))),
    tasksView(begin, end, now, x),
    slots.slice(0, maxRows).map((slot) => h("div", { key: slot, class: "trow", "data-slot": slot },
      h("span", { class: "num" }, slot),
      h("div", { class: "lane" }, rows.get(slot)!.sort((a, b) => a.from - b.from).map((b) => barView(b, x, isEarlier(b), now, open)), (seen.get(slot) ?? []).map((m) => markView(m, x))))),
    slots.length === 0 && h("p", { key: "none", class: "quiet" }, "Nothing ran at that time.")),
    slots.length > maxRows && h("p", { key: "more", class: "quiet" }, `The first ${maxRows} of ${slots.length} slots are shown.`));
}

function controlsView(now: number, span: number, fits: number, redraw: () => void): VNode {
  const act = (f: () => void) => () => {
    f();
    redraw();
  };
  return h("div", { class: "bar-of-controls" },
    h("p", { class: "key quiet" }, h("span", null, h("i", { class: "swatch" }), "version in force"), h("span", null, h("i", { class: "swatch earlier" }), "earlier version"), h("span", null, h("i", { class: "cell fail" }), "failed"), h("span", null, h("i", { class: "cell ill" }), "check failed")),
    !isNow() && h("button", { key: "now", onclick: act(showNow) }, "Back to now"),
    h("div", { class: "choices", role: "group", "aria-label": "Range" },
      ranges.map((r) => h("button", { key: r, class: "plain", "aria-pressed": Math.abs(span - r * minute) < 1000 ? "true" : "false", onclick: act(() => showLast(r * minute)) }, r < 60 ? `${r} min` : `${r / 60} h`)),
      h("button", { key: "out", class: "plain", "aria-label": "Zoom out", onclick: act(() => zoom(2, 1, fits, now)) }, "−"),
      h("button", { key: "in", class: "plain", "aria-label": "Zoom in", onclick: act(() => zoom(0.5, 1, fits, now)) }, "+")));
}

function barView(b: Bar, x: (t: number) => number, isEarlier: boolean, now: number, open: (id: string) => void): VNode {
  const from = Math.max(0, x(b.from)), to = Math.min(100, x(b.to || now));
  const text = `${b.name}, version ${b.number}, from ${when(b.from)} ${b.to ? "to " + when(b.to) : "until now"}${b.failed ? ", failed" : ""}`;
  return h("button", {
    key: b.id, class: `tbar${isEarlier ? " earlier" : ""}${b.failed ? " failed" : ""}`, "aria-label": text, title: text, disabled: !world.instances.has(b.id),
    style: { left: `${from}%`, width: `${Math.max(0.3, to - from)}%` }, onclick: () => open(b.id),
  }, b.number > 0 && h("span", { class: "v" }, `v${b.number}`));
}

const markView = (m: Mark, x: (t: number) => number): VNode => h("span", { key: m.key, class: `tmark ${m.shape}`, role: "img", "aria-label": m.text, title: m.text, style: { left: `${x(m.at)}%` } }, h("i", { class: "cell " + m.shape }));

/** tasksView draws tasks as brackets, one above the other where they overlap. */
function tasksView(begin: number, end: number, now: number, x: (t: number) => number): Child[] {
  const spans = [...tasks.values()].filter((t) => t.started).map((t) => ({ t, from: Date.parse(t.started!), to: t.finished ? Date.parse(t.finished) : now }))
    .filter((s) => s.to > begin && s.from < end).sort((a, b) => a.from - b.from);
  const rows: (typeof spans)[] = [];
  const room = (s: (typeof spans)[0]): number => ((end - begin) * 7 * (taskWords(s.t).length + 2)) / Math.max(200, innerWidth - 200); // for its words
  for (const s of spans) {
    const row = rows.find((r) => Math.max(r[r.length - 1].to, r[r.length - 1].from + room(r[r.length - 1])) < s.from);
    if (row) row.push(s);
    else if (rows.length < maxTaskRows) rows.push([s]);
    else rows[maxTaskRows - 1].push(s);
  }
  return rows.map((row, n) => h("div", { key: "tasks" + n, class: "trow tasks-of" }, h("span", { class: "quiet" }, n === 0 ? "Tasks" : ""),
    h("div", { class: "lane", role: "img", "aria-label": row.map((s) => taskWords(s.t)).join("; ") }, row.map((s, i) => {
      const from = Math.max(0, x(s.from)), to = Math.min(100, x(s.to));
      const next = i + 1 < row.length ? x(row[i + 1].from) : 100;
      return h("span", { key: s.t.id, class: `bracket ${s.t.state}`, title: `${taskWords(s.t)}, ${when(s.from)} to ${s.t.finished ? when(s.to) : "now"}`, style: { left: `${from}%`, width: `${Math.max(0.3, to - from)}%` } },
        h("span", { class: "words", style: { "max-width": `calc(${Math.max(0, next - from) / Math.max(0.3, to - from) * 100}% - 8px)` } }, taskWords(s.t)));
    }))));
}

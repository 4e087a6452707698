// Charts of the last hours: how many instances a service should have and had, what was started and
// failed, and how full a node was. A gap means that the server does not know.

import { clock, get, Node, Project } from "./api";
import { h, VNode } from "./dom";
import { explain } from "./sheet";
import type { Chart, create, Data } from "./uplot";
import { time } from "./views";
import { count, world } from "./world";

interface Window { from: string; interval_secs: number; since: string }
interface ServiceHistory { name: string; goal: (number | null)[]; running: (number | null)[]; starts: (number | null)[]; failures: (number | null)[] }
interface ProjectHistory extends Window { services: ServiceHistory[] }
interface NodeHistory extends Window { instances: (number | null)[]; milli_cpu: (number | null)[]; memory: (number | null)[] }

const ranges = [15, 60, 360]; // minutes
const interval = 10_000;

let minutes = 0; // 0: an hour, or less while less is known
let shown: { path: string; id: string } | null = null;
let project: ProjectHistory | null = null;
let node: NodeHistory | null = null;
let error = "";
let redraw = () => {};
let timer = 0;
let library: Promise<{ create: typeof create }> | null = null;
const charts = new Map<HTMLElement, { chart: Chart | null; data: Data }>();

/** openCharts shows the history of a project, and reads it again and again. */
export function openCharts(id: string, changed: () => void): void {
  begin({ path: `/v1/projects/${id}/history`, id }, changed);
}

/** openNodeChart shows the history of a node. */
export function openNodeChart(id: string, changed: () => void): void {
  begin({ path: `/v1/nodes/${id}/history`, id }, changed);
}

export const chartOf = (): string => shown?.id ?? "";

function begin(what: { path: string; id: string }, changed: () => void): void {
  redraw = changed;
  if (shown?.path === what.path) return;
  closeCharts();
  shown = what;
  void read();
}

export function closeCharts(): void {
  shown = null;
  project = node = null;
  error = "";
  clearTimeout(timer);
  for (const c of charts.values()) c.chart?.close();
  charts.clear();
}

async function read(): Promise<void> {
  const of = shown;
  clearTimeout(timer);
  if (!of) return;
  if (!document.hidden) {
    try {
      const got = await get<ProjectHistory & NodeHistory>(`${of.path}?minutes=${minutes || 60}`);
      if (shown !== of) return;
      if (!minutes && clock.now() - Date.parse(got.since) < 15 * 60_000) {
        minutes = 15;
        void read();
        return;
      }
      minutes ||= 60;
      error = "";
      if (of.path.startsWith("/v1/projects")) project = got;
      else node = got;
    } catch (e) {
      if (shown !== of) return;
      error = explain(e);
    }
    redraw();
  }
  timer = window.setTimeout(() => void read(), interval);
}

function rangeView(): VNode {
  return h("div", { class: "choices", role: "group", "aria-label": "Range" }, ranges.map((r) => h("button", {
    key: r, class: "plain", "aria-pressed": r === minutes ? "true" : "false",
    onclick: () => {
      minutes = r;
      void read();
      redraw();
    },
  }, r < 60 ? `${r} min` : `${r / 60} h`)));
}

const times = (w: Window, n: number): number[] => Array.from({ length: n + 1 }, (_, i) => Date.parse(w.from) / 1000 + i * w.interval_secs);

/** steps lets the last value last until now: the present interval may have none yet. */
function steps(all: (number | null)[]): (number | null)[] {
  const n = all.length;
  const out = [...all, all[n - 1] ?? all[n - 2] ?? null];
  out[n - 1] ??= all[n - 2] ?? null;
  return out;
}

const bars = (all: (number | null)[]): (number | null)[] => [...all, null].map((v) => v || null); // nothing is no bar
const sum = (all: (number | null)[]): number => all.reduce<number>((n, v) => n + (v ?? 0), 0);
const last = (all: (number | null)[]): number | null => all.findLast((v) => v !== null) ?? null;

const key = ([swatch, word]: string[]): VNode => h("span", { key: word }, h("i", { class: "swatch " + swatch }), word);

/** sinceWords says how far back the server remembers, if that is less than what is shown. */
function sinceWords(w: Window): VNode | null {
  if (Date.parse(w.since) <= Date.parse(w.from)) return null;
  return h("p", { key: "since", class: "quiet" }, `Known since ${time(w.since)}: the history is lost when the server restarts.`);
}

export function chartsView(p: Project): VNode {
  if (error && !project) return h("p", { class: "error", role: "alert" }, error);
  if (!project) return h("p", { class: "quiet" }, "Loading the last hours…");
  const w = project;
  const live = new Set(p.services.map((s) => s.name));
  const all = w.services.filter((s) => live.has(s.name) || s.running.some((v) => v !== null));
  return h("div", { class: "charts" },
    h("div", { class: "bar-of-controls" },
      h("p", { class: "key quiet" }, ...[["dash", "wanted"], ["run", "running"], ["begin", "started"], ["fault", "failed"]].map(key)),
      rangeView()),
    sinceWords(w),
    all.length === 0 && h("p", { key: "none", class: "quiet" }, "Nothing is known yet. The first values appear within ten seconds."),
    all.map((s) => h("article", { key: s.name, class: "chart-row", "data-chart": s.name },
      h("div", { class: "title" }, h("h2", null, s.name), h("p", { class: "quiet num" }, `${last(s.running) ?? "–"} of ${last(s.goal) ?? "–"} running`), h("p", { class: "quiet num" }, `${count(sum(s.starts), "start")}, ${count(sum(s.failures), "failure")}`)),
      plot("run" + s.name, {
        summary: `${s.name}: ${last(s.running) ?? "unknown"} of ${last(s.goal) ?? "unknown"} instances run`, times: times(w, s.goal.length),
        lines: [{ label: "Running", color: "ok", kind: "area", values: steps(s.running) }, { label: "Wanted", color: "ink", kind: "line", dashed: true, values: steps(s.goal) }],
      }, w, p.id),
      plot("start" + s.name, {
        summary: `${s.name}: ${count(sum(s.starts), "start")} and ${count(sum(s.failures), "failure")}`, times: times(w, s.starts.length),
        lines: [{ label: "Started", color: "gray", kind: "bars", values: bars(s.starts) }, { label: "Failed", color: "fail", kind: "bars", values: bars(s.failures) }],
      }, w, p.id))));
}

/** nodeChartView shows what is reserved on a node, in per cent of what it has. */
export function nodeChartView(n: Node): VNode {
  if (error && !node) return h("p", { key: "chart", class: "error", role: "alert" }, error);
  if (!node) return h("p", { key: "chart", class: "quiet" }, "Loading the last hours…");
  const w = node;
  const share = (all: (number | null)[], of: number): (number | null)[] => all.map((v) => (v === null ? null : (v / of) * 100));
  const cpu = n.capacity.milli_cpu ?? 0, memory = n.capacity.memory ?? 0;
  return h("div", { key: "chart", class: "node-chart" },
    h("div", { class: "bar-of-controls" }, h("p", { class: "key quiet" }, ...[cpu > 0 && memory > 0 && ["solid", "CPU reserved"], cpu > 0 && memory > 0 && ["dash memory", "memory reserved"], ["begin", "instances"]].filter((k) => k !== false).map(key)), rangeView()),
    sinceWords(w),
    cpu > 0 && memory > 0 && plot("share", {
      summary: `Reserved on ${n.name}: ${Math.round(last(share(w.milli_cpu, cpu)) ?? 0)} % of CPU, ${Math.round(last(share(w.memory, memory)) ?? 0)} % of memory`, times: times(w, w.memory.length), max: 100, unit: " %",
      lines: [{ label: "CPU", color: "ink", kind: "line", values: steps(share(w.milli_cpu, cpu)) }, { label: "Memory", color: "accent", kind: "line", dashed: true, values: steps(share(w.memory, memory)) }],
    }, w, n.id),
    plot("instances", {
      summary: `${n.name} has ${last(w.instances) ?? "an unknown number of"} instances`, times: times(w, w.instances.length), lines: [{ label: "Instances", color: "gray", kind: "area", values: steps(w.instances) }],
    }, w, n.id));
}

/** plot is the element of a chart. Its data changes when a window was read. */
function plot(key: string, data: Data, w: Window, group: string): VNode {
  return h("div", { key, class: "plot", memo: w, use: (el: HTMLElement) => {
    const there = charts.get(el);
    if (there) {
      there.data = data;
      there.chart?.show(data);
      return;
    }
    const mine: { chart: Chart | null; data: Data } = { chart: null, data };
    charts.set(el, mine);
    void draw(el, mine, group);
  } });
}

async function draw(el: HTMLElement, mine: { chart: Chart | null; data: Data }, group: string): Promise<void> {
  try {
    library ??= import("/assets/uplot.js") as Promise<{ create: typeof create }>;
    const made = await library;
    if (charts.get(el) === mine && el.isConnected && world.me) mine.chart = made.create(el, mine.data, group);
  } catch {
    library = null;
    error = "The charts did not load. Reload the page.";
    project = node = null;
    redraw();
  }
}

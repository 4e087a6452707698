// A cell per instance: its colour and its shape say its state, so that a missing or failed one
// is seen before any number is read.

import { Instance, Project, Service } from "./api";
import { h, VNode } from "./dom";

export type Shape = "ok" | "start" | "ill" | "fail" | "stop" | "lost" | "none" | "off";

export interface Cell { shape: Shape; old: boolean; name: string; id: string }

const words: Record<Shape, string> = {
  ok: "running", start: "starting", ill: "unhealthy", fail: "failed", stop: "stopping", lost: "unknown", none: "missing", off: "stopped",
};

/** shapeOf returns how an instance is drawn. */
export function shapeOf(i: Instance): Shape {
  switch (i.state) {
    case "running": return i.health === "unhealthy" ? "ill" : i.health === "starting" ? "start" : "ok";
    case "pending": case "provisioning": return i.goal === "gone" ? "stop" : "start";
    case "draining": case "stopping": return "stop";
    case "failed": return "fail";
    case "unknown": return "lost";
  }
  return "off";
}

const slotOf = (i: Instance): number => Number(/(\d+)$/.exec(i.slot)?.[1] ?? 0);

/** cellsOf returns the cells of a service, in the order of its slots. Ended instances that are
 * kept for inspection are shown only while nothing has taken their place. */
export function cellsOf(s: Service, instances: Iterable<Instance>): Cell[] {
  const live: Instance[] = [];
  const ended: Instance[] = [];
  for (const i of instances) (i.state === "failed" || i.state === "stopped" ? ended : live).push(i);
  const taken = new Set(live.map(slotOf));
  let missing = Math.max(0, s.goal - taken.size);
  if (s.status !== "stopped") {
    ended.sort((a, b) => b.created.localeCompare(a.created));
    for (const i of ended) {
      if (missing === 0) break;
      if (taken.has(slotOf(i))) continue;
      taken.add(slotOf(i));
      live.push(i);
      missing--;
    }
  }
  live.sort((a, b) => slotOf(a) - slotOf(b) || a.created.localeCompare(b.created));
  const cells = live.map((i): Cell => ({ shape: shapeOf(i), old: s.outdated > 0 && (i.number ?? 0) < s.number, name: i.name, id: i.id }));
  for (; missing > 0; missing--) cells.push({ shape: s.status === "stopped" ? "off" : "none", old: false, name: s.name, id: "" });
  return cells;
}

/** cellsFrom guesses the cells of services from their counts alone, for a summary. */
export function cellsFrom(p: Project, services = p.services): Cell[] {
  const cells: Cell[] = [];
  for (const s of services) {
    const add = (n: number, shape: Shape, old = false) => {
      for (let i = 0; i < n; i++) cells.push({ shape, old, name: s.name, id: "" });
    };
    if (p.goal === "stopped" || s.status === "stopped") {
      add(Math.max(0, s.goal - s.stopping), "off");
      add(s.stopping, "stop");
      continue;
    }
    const ill = Math.max(0, s.running - s.healthy);
    const old = Math.min(s.outdated, s.healthy);
    add(s.healthy - old, "ok");
    add(old, "ok", true);
    add(ill, "ill");
    add(s.starting, "start");
    const missing = Math.max(0, s.goal - s.running - s.starting - s.unknown);
    const failed = Math.min(missing, s.failed);
    add(s.unknown, "lost");
    add(failed, "fail");
    add(missing - failed, "none");
    add(s.stopping, "stop");
  }
  return cells;
}

export function describe(cells: Cell[]): string {
  const n: Partial<Record<Shape, number>> = {};
  for (const c of cells) n[c.shape] = (n[c.shape] ?? 0) + 1;
  const parts = (Object.keys(words) as Shape[]).filter((s) => n[s]).map((s) => `${n[s]} ${words[s]}`);
  return parts.join(", ") || "nothing runs";
}

/** strip is a summary of a project, or of some services: its cells, or a bar if there are too many. */
export function strip(p: Project, services = p.services, most = 60): VNode {
  const cells = cellsFrom(p, services);
  const label = describe(cells);
  if (cells.length <= most) {
    const size = cells.length > 30 ? " small" : cells.length > 18 ? " close" : "";
    return h("span", { class: "cells" + size, role: "img", "aria-label": label }, cells.map((c, i) => h("i", { key: i, class: `cell ${c.shape}${c.old ? " old" : ""}` })));
  }
  const n = new Map<string, number>();
  for (const c of cells) n.set(c.shape + (c.old ? " old" : ""), (n.get(c.shape + (c.old ? " old" : "")) ?? 0) + 1);
  return h("span", { class: "bar", role: "img", "aria-label": label }, [...n].map(([shape, k]) => h("i", { key: shape, class: "part " + shape, style: { "flex-grow": String(k) } })));
}

interface Grid { cells: Cell[]; at: number; drawn: HTMLElement[] }
const grids = new WeakMap<HTMLElement, Grid>();

/** grid draws one cell per instance into an element that can be reached by keyboard. It writes
 * only the cells that differ, so thousands of them stay smooth. */
export function grid(service: string, cells: Cell[], chosen: string, open: (id: string) => void, hover: (name: string) => void): VNode {
  const size = cells.length > 1500 ? " tiny" : cells.length > 300 ? " small" : "";
  return h("div", {
    class: "cells grid" + size, tabindex: 0, role: "group", "aria-label": `Instances of ${service}: ${describe(cells)}`,
    onclick: (e: MouseEvent) => pick(e.currentTarget as HTMLElement, e.target as HTMLElement, open),
    onmouseover: (e: MouseEvent) => {
      const g = grids.get(e.currentTarget as HTMLElement);
      const i = g ? g.drawn.indexOf(e.target as HTMLElement) : -1;
      hover(i >= 0 ? nameOf(g!.cells[i]) : "");
    },
    onmouseleave: () => hover(""),
    onkeydown: (e: KeyboardEvent) => move(e, open, hover),
    onblur: (e: FocusEvent) => {
      mark(e.currentTarget as HTMLElement, -1);
      hover("");
    },
    use: (el: HTMLElement) => draw(el, cells, chosen),
  });
}

const nameOf = (c: Cell): string => `${c.name}, ${words[c.shape]}${c.old ? ", outdated" : ""}`;

function draw(el: HTMLElement, cells: Cell[], chosen: string): void {
  let g = grids.get(el);
  if (!g) grids.set(el, (g = { cells: [], at: -1, drawn: [] }));
  while (g.drawn.length < cells.length) {
    const i = document.createElement("i");
    g.drawn.push(i);
    el.appendChild(i);
  }
  while (g.drawn.length > cells.length) g.drawn.pop()!.remove();
  cells.forEach((c, i) => {
    const name = `cell ${c.shape}${c.old ? " old" : ""}${c.id && c.id === chosen ? " chosen" : ""}`;
    const d = g.drawn[i];
    if (d.className !== name && d.className !== name + " at") d.className = i === g.at ? name + " at" : name;
    if (d.dataset.name !== c.name) d.dataset.name = c.name;
  });
  g.cells = cells;
}

function pick(el: HTMLElement, target: HTMLElement, open: (id: string) => void): void {
  const g = grids.get(el);
  const i = g ? g.drawn.indexOf(target) : -1;
  if (i >= 0 && g!.cells[i].id) open(g!.cells[i].id);
}

function mark(el: HTMLElement, at: number): void {
  const g = grids.get(el);
  if (!g) return;
  g.drawn[g.at]?.classList.remove("at");
  g.at = at;
  g.drawn[at]?.classList.add("at");
  g.drawn[at]?.scrollIntoView({ block: "nearest" });
}

function move(e: KeyboardEvent, open: (id: string) => void, hover: (name: string) => void): void {
  const el = e.currentTarget as HTMLElement;
  const g = grids.get(el);
  if (!g || g.drawn.length === 0) return;
  const top = (i: number) => g.drawn[i]?.offsetTop ?? 0;
  const row = g.drawn.filter((d) => d.offsetTop === top(Math.max(0, g.at))).length;
  const step: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row };
  if (e.key === "Enter" && g.at >= 0) {
    if (g.cells[g.at].id) open(g.cells[g.at].id);
  } else if (e.key in step) {
    const next = Math.max(0, Math.min(g.drawn.length - 1, g.at < 0 ? 0 : g.at + step[e.key]));
    mark(el, next);
    hover(nameOf(g.cells[next]));
  } else {
    return;
  }
  e.preventDefault();
  e.stopPropagation();
}

/** glyph is the sign of a status, beside its word. */
export function glyph(status: string): VNode {
  const shape: Record<string, string> = {
    converged: "ok", converging: "start", "backing-off": "fail", blocked: "ill", held: "held", frozen: "cold", paused: "held", failed: "fail", stopped: "off",
    queued: "none", active: "start", completed: "ok", terminated: "off", running: "ok", unknown: "lost", rebooting: "stop", drained: "off",
  };
  return h("i", { class: "cell " + (shape[status] ?? "off"), "aria-hidden": "true" });
}


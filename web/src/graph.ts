// The graph of a project: what depends on what, in layers from left to right.

import { get, Project } from "./api";
import { glyph, strip } from "./cells";
import { h, VNode } from "./dom";
import { explain } from "./sheet";
import { pathOf, sentence } from "./views";

interface GNode { kind: string; name: string; layer: number; status: string; reason: string; reason_code: string; goal: number; running: number; leftover?: boolean }
interface GEdge { from: string; from_kind: string; to: string; to_kind: string; why: string }
interface Graph { nodes: GNode[]; edges: GEdge[] }

let shown: { project: string; graph: Graph | null; error: string } = { project: "", graph: null, error: "" };
let loading = false;
let again = false;

const width = 192, height = 56, across = 272, beside = 208, down = 72;

/** loadGraph reads the graph of a project, at most once at a time. */
export async function loadGraph(project: string, redraw: () => void): Promise<void> {
  if (shown.project !== project) shown = { project, graph: null, error: "" };
  if (loading) {
    again = true;
    return;
  }
  loading = true;
  try {
    do {
      again = false;
      const graph = await get<Graph>(`/v1/projects/${shown.project}/graph`);
      shown = { ...shown, graph, error: "" };
      redraw();
      await new Promise((r) => setTimeout(r, 150)); // many changes at once are one request
    } while (again);
  } catch (e) {
    shown.error = explain(e);
    redraw();
  }
  loading = false;
}

const id = (kind: string, name: string): string => kind + " " + name;

/** The most nodes of a layer that are below each other. A larger layer has several columns. */
const tallest = 12;

/** From this many nodes on, the graph has a map. */
const mapped = 50;

type Places = Map<string, { x: number; y: number }>;

/** layOut places the nodes of each layer near the nodes that they are connected with. */
function layOut(g: Graph): Places {
  const layers: GNode[][] = [];
  for (const layer of [...new Set(g.nodes.map((n) => n.layer))].sort((a, b) => a - b)) {
    layers.push(g.nodes.filter((n) => n.layer === layer).sort((a, b) => a.name.localeCompare(b.name)));
  }
  const near = new Map<string, string[]>();
  const connect = (a: string, b: string) => near.set(a, [...(near.get(a) ?? []), b]);
  for (const e of g.edges) {
    connect(id(e.from_kind, e.from), id(e.to_kind, e.to));
    connect(id(e.to_kind, e.to), id(e.from_kind, e.from));
  }
  // A few passes in both directions leave few crossings.
  const rank = new Map<string, number>();
  const number = (nodes: GNode[]) => nodes.forEach((n, i) => rank.set(id(n.kind, n.name), (i + 0.5) / nodes.length));
  layers.forEach(number);
  const pull = (n: GNode): number => {
    const at = (near.get(id(n.kind, n.name)) ?? []).map((other) => rank.get(other) ?? 0.5);
    return at.length ? at.reduce((a, b) => a + b, 0) / at.length : rank.get(id(n.kind, n.name))!;
  };
  for (let pass = 0; pass < 4; pass++) {
    for (const nodes of pass % 2 ? [...layers].reverse() : layers) {
      const pulls = new Map(nodes.map((n) => [n, pull(n)]));
      nodes.sort((a, b) => pulls.get(a)! - pulls.get(b)!);
      number(nodes);
    }
  }
  const rows = Math.min(tallest, Math.max(...layers.map((l) => l.length)));
  const at: Places = new Map();
  let left = 0;
  for (const nodes of layers) {
    const columns = Math.ceil(nodes.length / tallest), deep = Math.ceil(nodes.length / columns);
    nodes.forEach((n, i) => {
      const column = Math.floor(i / deep);
      const inColumn = Math.min(deep, nodes.length - column * deep);
      at.set(id(n.kind, n.name), { x: left + column * beside, y: (i % deep + (rows - inColumn) / 2) * down });
    });
    left += (columns - 1) * beside + across;
  }
  return at;
}

/** mapView is a small picture of a large graph. It shows which part is visible, and goes where it is clicked. */
function mapView(g: Graph, at: Places, w: number, tall: number): VNode {
  const scale = Math.min(200 / w, 120 / tall);
  return h("svg", {
    class: "map", width: Math.round(w * scale), height: Math.round(tall * scale), viewBox: `0 0 ${w} ${tall}`, "aria-hidden": "true",
    onclick: (e: MouseEvent) => {
      const map = (e.currentTarget as SVGElement).getBoundingClientRect(), graph = (e.currentTarget as SVGElement).parentElement!.querySelector(".graph")!;
      graph.scrollTo((e.clientX - map.left) / scale - graph.clientWidth / 2, (e.clientY - map.top) / scale - graph.clientHeight / 2);
    },
  }, g.nodes.map((n) => {
    const { x, y } = at.get(id(n.kind, n.name))!;
    return h("rect", { key: id(n.kind, n.name), class: n.status === "converged" ? "ok" : ["failed", "blocked", "backing-off"].includes(n.status) ? "fail" : "", x, y, width, height });
  }), h("rect", { key: "view", class: "view" }));
}

/** followScroll keeps the frame in the map where the visible part is. */
function followScroll(graph: HTMLElement): void {
  const update = () => {
    const view = graph.parentElement?.querySelector(".map .view");
    if (!view) return;
    for (const [name, value] of [["x", graph.scrollLeft], ["y", graph.scrollTop], ["width", graph.clientWidth], ["height", graph.clientHeight]] as const) view.setAttribute(name, String(value));
  };
  graph.onscroll = update;
  requestAnimationFrame(update);
}

/** The most cells in a node of the graph. More instances are a bar. */
const mostCells = 10;

/** slotsOf shows the instances of a node of the graph, as the overview does. */
function slotsOf(p: Project, n: GNode): VNode {
  const of = p.services.filter((s) => s.name === n.name);
  if ((n.kind !== "service" && n.kind !== "load_balancer") || of.length === 0) return h("span", { class: "quiet" }, n.kind.replace("_", " "));
  return h("span", { class: "slots" }, strip(p, of, mostCells), h("span", { class: "num quiet" }, `${n.running}/${n.goal}`));
}

export function graphView(p: Project): VNode {
  const g = shown.graph;
  if (shown.error) return h("p", { class: "error", role: "alert" }, shown.error);
  if (!g) return h("p", { class: "quiet" }, "Loading the graph…");
  if (g.nodes.length === 0) return h("p", { class: "quiet" }, "This project has no services.");
  const at = layOut(g);
  const w = Math.max(...[...at.values()].map((a) => a.x)) + width, tall = Math.max(...[...at.values()].map((a) => a.y)) + height;
  const waiting = g.nodes.filter((n) => n.reason && n.status !== "converged");
  const isWaiting = new Set(waiting.filter((n) => n.reason_code.startsWith("waits")).map((n) => id(n.kind, n.name)));
  return h("div", null,
    g.nodes.length > mapped && mapView(g, at, w, tall),
    h("div", { class: "graph", tabindex: 0, role: "group", "aria-label": "Graph of dependencies", use: followScroll },
      h("div", { class: "canvas", style: { width: `${w}px`, height: `${tall}px` } },
        h("svg", { width: w, height: tall, "aria-hidden": "true" }, g.edges.map((e) => {
          const a = at.get(id(e.to_kind, e.to)), b = at.get(id(e.from_kind, e.from));
          if (!a || !b) return null;
          const x1 = a.x + width, y1 = a.y + height / 2, x2 = b.x, y2 = b.y + height / 2, bend = Math.max(32, (x2 - x1) / 2);
          return h("path", { key: e.from_kind + e.from + e.to_kind + e.to, class: isWaiting.has(id(e.from_kind, e.from)) ? "waits" : "", d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
        })),
        g.nodes.map((n) => {
          const { x, y } = at.get(id(n.kind, n.name))!;
          const depends = g.edges.filter((e) => e.from === n.name && e.from_kind === n.kind).map((e) => e.to);
          return h("a", {
            key: id(n.kind, n.name), class: "gnode", href: pathOf(p), style: { left: `${x}px`, top: `${y}px` }, "data-gnode": n.name,
          },
          h("span", { class: "name" }, glyph(n.leftover ? "stopped" : n.status), h("b", null, n.name)),
          slotsOf(p, n),
          h("span", { class: "hidden" }, n.status, depends.length ? `, depends on ${depends.join(", ")}` : ""));
        }))),
    waiting.length > 0 && h("ul", { class: "waiting" }, waiting.map((n) => h("li", { key: n.kind + n.name }, h("b", null, n.name), " ", h("span", { class: "quiet" }, ...sentence(n.reason, p))))));
}

// The graph of a project: what depends on what, in layers from left to right.

import { get, Project } from "./api";
import { glyph } from "./cells";
import { h, VNode } from "./dom";
import { explain } from "./sheet";
import { pathOf, sentence } from "./views";

interface GNode { kind: string; name: string; layer: number; status: string; reason: string; reason_code: string; goal: number; running: number; leftover?: boolean }
interface GEdge { from: string; from_kind: string; to: string; to_kind: string; why: string }
interface Graph { nodes: GNode[]; edges: GEdge[] }

let shown: { project: string; graph: Graph | null; error: string } = { project: "", graph: null, error: "" };
let loading = false;
let again = false;

const width = 176, height = 52, across = 264, down = 76;

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

/** layOut places the nodes of each layer beside the nodes that they depend on. */
function layOut(g: Graph): Map<string, { x: number; y: number }> {
  const layers = new Map<number, GNode[]>();
  for (const n of g.nodes) layers.set(n.layer, [...(layers.get(n.layer) ?? []), n]);
  const at = new Map<string, { x: number; y: number }>();
  [...layers.keys()].sort((a, b) => a - b).forEach((layer, column) => {
    const nodes = layers.get(layer)!;
    const pull = (n: GNode) => {
      const ys = g.edges.filter((e) => id(e.from_kind, e.from) === id(n.kind, n.name)).map((e) => at.get(id(e.to_kind, e.to))?.y).filter((y) => y !== undefined);
      return ys.length ? ys.reduce((a, b) => a + b, 0) / ys.length : 1e9;
    };
    nodes.sort((a, b) => pull(a) - pull(b) || a.name.localeCompare(b.name));
    nodes.forEach((n, row) => at.set(id(n.kind, n.name), { x: column * across, y: row * down }));
  });
  return at;
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
    h("div", { class: "graph", tabindex: 0, role: "group", "aria-label": "Graph of dependencies" },
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
          h("span", { class: "quiet num" }, n.kind === "service" ? `${n.running} of ${n.goal}` : n.kind.replace("_", " ")),
          h("span", { class: "hidden" }, n.status, depends.length ? `, depends on ${depends.join(", ")}` : ""));
        }))),
    waiting.length > 0 && h("ul", { class: "waiting" }, waiting.map((n) => h("li", { key: n.kind + n.name }, h("b", null, n.name), " ", h("span", { class: "quiet" }, ...sentence(n.reason))))));
}

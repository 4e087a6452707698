// The nodes of the installation, by data center and rack.

import { Node, Resources, send } from "./api";
import { glyph } from "./cells";
import { chartOf, closeCharts, nodeChartView, openNodeChart } from "./charts";
import { Child, h, VNode } from "./dom";
import { ask, explain } from "./sheet";
import { sentence } from "./views";
import { count, world } from "./world";

export function nodesView(redraw: () => void): VNode {
  if (!world.me?.admin) {
    return h("main", { key: "nodes" }, h("h1", null, "Nodes"), h("p", { class: "quiet" }, "Only admins of the installation see its nodes."));
  }
  if (!world.nodes) return h("main", { key: "nodes" }, h("h1", null, "Nodes"), h("p", { class: "quiet" }, "Loading nodes…"));
  const places = new Map<string, Node[]>();
  for (const n of world.nodes) {
    const at = [n.dc, n.rack && `rack ${n.rack}`].filter(Boolean).join(", ");
    places.set(at, [...(places.get(at) ?? []), n]);
  }
  return h("main", { key: "nodes", class: "nodes" },
    h("h1", null, "Nodes"),
    world.nodes.length === 0 && h("p", { class: "quiet" }, "No node has joined. ", h("code", null, "mariposa node join-token"), " prints how to add one."),
    [...places].sort((a, b) => a[0].localeCompare(b[0])).map(([at, nodes]) => h("section", { key: at },
      at && h("h2", null, at),
      h("ul", { class: "nodelist" }, nodes.map((n) => h("li", { key: n.id, class: "node", "data-node": n.name },
        h("span", { class: "name" }, glyph(n.status), h("b", null, n.name), n.status !== "running" && h("span", { class: "quiet" }, n.status)),
        h("span", { class: "num" }, count(n.instances, "instance")),
        meter("cpu", n.reserved.milli_cpu, n.capacity.milli_cpu, (v) => `${(v / 1000).toFixed(1)}`),
        meter("memory", n.reserved.memory, n.capacity.memory, bytes),
        h("span", { class: "quiet" }, n.drivers.join(", ")),
        h("span", { class: "acts" }, n.drain
          ? h("button", { class: "plain", onclick: () => askUndrain(n) }, n.drain.state === "draining" ? "End the drain…" : "Undrain…")
          : (n.status === "running" || n.status === "unknown") && h("button", { class: "plain", onclick: () => void askDrain(n) }, "Drain…"),
          h("button", { key: "load", class: "plain", "aria-expanded": chartOf() === n.id ? "true" : "false", onclick: () => {
            if (chartOf() === n.id) closeCharts();
            else openNodeChart(n.id, redraw);
            redraw();
          } }, "Load")),
        n.reason && h("p", { class: "reason" }, ...sentence(n.reason, null)),
        chartOf() === n.id && nodeChartView(n)))))));
}

interface Forecast { moves: { to_name?: string; removed?: boolean }[]; stays: { name: string; reason?: string }[]; total: number }

/** askDrain says what a drain would do, from the server's dry run. */
async function askDrain(n: Node): Promise<void> {
  const says: Child[] = [];
  try {
    const f = (await send<{ drain?: Forecast }>("PUT", `/v1/nodes/${n.id}`, { action: "drain", dry_run: true })).drain;
    const all = f?.total ?? 0, moves = f?.moves.length ?? 0;
    const what = all === 0 ? "It has no instances." : `${moves === all ? "Its" : `${moves} of its`} ${count(all, "instance")} will move to other nodes, within the limits of their services.`;
    says.push(`The node gets no new instances until you undrain it. ${what}`);
    if (f?.stays.length) says.push(`${count(f.stays.length, "instance")} cannot move now. ${f.stays[0].reason ?? ""}`);
  } catch (e) {
    ask({ title: `Drain ${n.name}`, says: [explain(e)], verb: "" });
    return;
  }
  ask({ title: `Drain ${n.name}`, says, verb: "Drain", run: async () => void (await send("PUT", `/v1/nodes/${n.id}`, { action: "drain" })) });
}

function askUndrain(n: Node): void {
  ask({
    title: `Undrain ${n.name}`, verb: "Undrain", says: ["The node takes instances again. Nothing is moved back to it."],
    run: async () => void (await send("PUT", `/v1/nodes/${n.id}`, { action: "undrain" })),
  });
}

function meter(what: keyof Resources | string, used = 0, of = 0, say: (v: number) => string): VNode {
  if (!of) return h("span", { class: "meter quiet" }, "");
  const share = Math.min(1, used / of);
  const label = `${what} ${say(used)} of ${say(of)}`;
  return h("span", { class: "meter" }, h("span", { class: "track", role: "img", "aria-label": label }, h("i", { style: { width: `${Math.round(share * 100)}%` } })), h("span", { class: "quiet num" }, label));
}

function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

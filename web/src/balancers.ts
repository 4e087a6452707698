// The load balancers of a project: where they listen, what they route, and their members with
// their open connections.

import { get, Project, Status } from "./api";
import { glyph } from "./cells";
import { h, VNode } from "./dom";
import { sentence, statusWord } from "./views";
import { count, world } from "./world";

interface Route { host: string; path: string; service: string; port: number }
interface Member { balancer: string; instance: string; instance_name: string; backend: string; address: string; state: "up" | "drain" | "down"; weight: number; connections: number | null; reason: string }
interface Balancer {
  id: string; name: string; mode: string; listen: number[]; tls: boolean; routes: Route[]; address: string; status: Status; reason: string;
  instances: { id: string; name: string; node_name: string; state: string }[]; members: Member[];
}

/** Connections change without events, so they are read again after this many milliseconds. */
const interval = 3000;

let shown: { project: string; balancers: Balancer[] } = { project: "", balancers: [] };
let read = 0;
let loading = false;

const has = (): boolean => [...world.instances.values()].some((i) => i.compute_type === "balancer");

/** refreshBalancers reads the balancers of a project again if what is shown is old. */
export async function refreshBalancers(project: string, redraw: () => void, now = performance.now()): Promise<void> {
  if (shown.project !== project) shown = { project, balancers: [] };
  else if (now - read < interval) return;
  if (loading || !has()) return;
  loading = true;
  read = now;
  try {
    const { balancers } = await get<{ balancers: Balancer[] }>(`/v1/projects/${project}/balancers`);
    if (shown.project === project) shown.balancers = balancers;
  } catch {
    // What is shown stays; the next attempt follows soon.
  }
  loading = false;
  redraw();
}

export function balancersView(p: Project): VNode | null {
  if (shown.project !== p.id || shown.balancers.length === 0) return null;
  return h("section", { key: "balancers", class: "balancers", "aria-label": "Load balancers" },
    h("h2", null, "Load balancers"),
    shown.balancers.map((b) => h("article", { key: b.id, class: "balancer", "data-balancer": b.name, "aria-label": `Load balancer ${b.name}` },
      h("div", { class: "title" },
        h("h3", null, glyph(b.status), b.name),
        h("span", { class: "quiet" }, `${b.mode}${b.tls ? " with TLS" : ""}, ${b.listen.length ? `port ${b.listen.join(", ")}` : b.address}`),
        b.status !== "converged" && h("span", { class: "quiet" }, statusWord[b.status])),
      h("div", null,
        b.status !== "converged" && b.reason && h("p", { key: "why", class: "reason" }, ...sentence(b.reason, p)),
        b.routes.length > 0 && h("ul", { key: "routes", class: "routes" }, b.routes.map((r, i) => h("li", { key: i }, r.host || r.path ? h("code", null, r.host + (r.path || "/")) : "Everything", " goes to ", r.service, h("span", { class: "quiet" }, ` port ${r.port}`)))),
        b.members.length === 0
          ? h("p", { key: "none", class: "quiet" }, "It has no members: no instance behind it is up.")
          : h("table", { key: "members", class: "members" },
            h("thead", null, h("tr", null, ["Member", "State", "Address", "Weight", "Connections"].map((name) => h("th", { key: name, scope: "col" }, name)))),
            h("tbody", null, b.members.map((m) => h("tr", { key: m.balancer + m.backend + m.instance, "data-member": m.instance_name },
              h("td", null, m.instance_name),
              h("td", null, glyph({ up: "running", drain: "rebooting", down: "failed" }[m.state]), m.state === "drain" ? "drains" : m.state, m.state === "down" && m.reason && h("span", { class: "quiet" }, " ", ...sentence(m.reason))),
              h("td", null, h("code", null, m.address)),
              h("td", { class: "num" }, m.weight),
              h("td", { class: "num" }, m.connections ?? "not known"))))),
        b.instances.length > 1 && h("p", { key: "copies", class: "quiet" }, `Runs as ${count(b.instances.length, "instance")}, on ${b.instances.map((i) => i.node_name).join(", ")}.`)))));
}

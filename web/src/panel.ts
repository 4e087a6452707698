// The panel of one instance, at the right.

import { Check, clock, get, Instance, Project, request, send } from "./api";
import { shapeOf } from "./cells";
import { h, VNode } from "./dom";
import { plain } from "./plain";
import { ask, explain } from "./sheet";
import { canOpenShell, isConsole, openShell } from "./shell";
import { sentence } from "./views";
import { ago, may, span, world } from "./world";

let id = "";
let full: Instance | null = null;
let log = "";
let error = "";

export const shownInstance = (): string => id;

export function hideInstance(): void {
  id = "";
  full = null;
}

export async function showInstance(which: string, redraw: () => void): Promise<void> {
  id = which;
  full = null;
  log = error = "";
  redraw();
  try {
    const got = await get<Instance>(`/v1/instances/${which}`);
    if (id !== which) return;
    full = got;
    redraw();
    if (got.compute_type === "dummy") return; // has no output
    const lines = await (await request("GET", `/v1/instances/${which}/logs?tail=50`, undefined, "text/plain")).text();
    if (id !== which) return; // another one was opened meanwhile
    log = plain(lines);
  } catch (e) {
    if (id === which) error = explain(e);
  }
  redraw();
}

let stale = false;
let refreshing = false;

/** refreshInstance reads what is shown again if the instance is among those that have changed. */
export async function refreshInstance(changed: { instance: Instance }[], redraw: () => void): Promise<void> {
  if (!full || !world.instances.has(id) || !changed.some((c) => c.instance.id === id)) return;
  stale = true;
  if (refreshing) return;
  refreshing = true;
  while (stale) {
    stale = false;
    const which = id;
    // What is being removed may be gone before the server is asked, and has nothing new to show.
    const stays = which && world.instances.has(which) && world.instances.get(which)!.goal !== "gone";
    const got = stays && (await get<Instance>(`/v1/instances/${which}`).catch(() => null)); // it may be gone
    if (got && id === which) full = got;
    redraw();
    await new Promise((r) => setTimeout(r, 150)); // many changes at once are one request
  }
  refreshing = false;
}

const checkShape: Record<string, string> = { healthy: "ok", unhealthy: "ill", starting: "start" };

/** checksView shows what the health checks of an instance say, and since when. */
function checksView(checks: Check[], p: Project): VNode {
  return h("div", { key: "checks" }, h("h3", null, "Health checks"),
    h("ul", { class: "results" }, checks.map((c, i) => h("li", { key: i + c.name, "data-check": c.name },
      h("i", { class: "cell " + (checkShape[c.health] ?? "lost"), "aria-hidden": "true" }),
      h("code", null, c.name),
      h("span", { class: "quiet" }, `${c.health} for ${span(clock.now() - Date.parse(c.since))}`),
      c.reason && h("p", { class: "reason" }, ...sentence(c.reason, p))))));
}

export function panelView(p: Project, redraw: () => void): VNode | null {
  if (!id) return null;
  const live = world.instances.get(id);
  const i = live ?? full;
  const close = () => {
    hideInstance();
    redraw();
  };
  if (!i) return h("aside", { key: "panel", class: "panel", "aria-label": "Instance" }, h("p", { class: "quiet" }, error || "Loading…"));
  const fact = (name: string, value: unknown) => (value === "" || value === null || value === undefined ? [] : [h("dt", { key: "t" + name }, name), h("dd", { key: "d" + name }, String(value))]);
  return h("aside", { key: "panel", class: "panel", "aria-label": `Instance ${i.name}` },
    h("header", null, h("h2", null, i.name), h("button", { class: "plain", onclick: close, "aria-label": "Close", use: focusNew }, "Close")),
    h("p", { class: "state" }, h("i", { class: "cell " + shapeOf(i), "aria-hidden": "true" }), live ? i.state : "gone", live && i.health !== "unknown" && i.health ? `, ${i.health}` : ""),
    i.reason && h("p", { class: "reason" }, ...sentence(i.reason, p)),
    h("dl", null,
      ...fact("Service", i.service_name), ...fact("Node", i.node_name), ...fact("Addresses", (full ?? i).addresses?.join(", ")), ...fact("Version", i.number),
      ...fact("Compute", i.compute_type), ...fact("Started", ago(i.started)), ...fact("Ended", ago(i.finished)), ...fact("Exit code", i.exit_code), ...fact("Restarts", i.restarts || ""), ...fact("Id", i.id)),
    live && may(p.id, "operator") && h("div", { class: "buttons" },
      actsOf(i).map((a) => h("button", { key: a.verb, onclick: () => ask({ title: `${a.verb} ${i.name}`, verb: a.verb, says: [a.says], run: a.run }) }, a.verb + "…")),
      canOpenShell(i) && h("button", { key: "shell", onclick: () => {
        hideInstance();
        openShell(i, redraw);
      } }, isConsole(i) ? "Open the console" : "Open a shell")),
    live && full?.checks?.length ? checksView(full.checks, p) : null,
    full?.environment?.length && h("details", { key: "env" }, h("summary", null, "Environment"), h("pre", { tabindex: 0 }, full.environment.join("\n"))),
    h("h3", null, "Last log lines"),
    error ? h("p", { class: "error" }, error) : h("pre", { class: "log", tabindex: 0, "aria-label": "Log" }, log || (i.compute_type === "dummy" ? "A dummy has no output." : "No output yet.")));
}

function focusNew(el: HTMLElement, isNew: boolean): void {
  if (isNew) requestAnimationFrame(() => el.focus());
}

interface Act { verb: string; says: string; run: () => Promise<void> }

/** actsOf lists what can be done with an instance now. */
function actsOf(i: Instance): Act[] {
  const act = (verb: string, says: string): Act => ({ verb, says, run: async () => void (await send("PUT", `/v1/instances/${i.id}`, { action: verb.toLowerCase() })) });
  const remove = (verb: string, says: string, force: string): Act => ({ verb, says, run: async () => void (await send("DELETE", `/v1/instances/${i.id}${force}`)) });
  const restart = act("Restart", "It stops and starts again in place, on the same node and with the same addresses where possible.");
  if (i.managed) return [restart, act("Replace", "Mariposa makes a new instance for its slot and removes this one, in the order that the manifest says.")];
  if (i.goal === "gone") return [remove("Kill", "It is being removed. It gets no more time to stop.", "?force=true")];
  const gone = remove("Remove", "It stops and is deleted. Its volumes stay. Nothing takes its place.", "");
  if (i.goal === "stopped") return [act("Start", "It starts again, on the same node."), gone];
  return [restart, act("Stop", "It stops, and stays as it is until you start it again."), gone];
}

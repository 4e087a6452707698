// The audit log, with filters.

import { clock, get } from "./api";
import { Child, h, VNode } from "./dom";
import { Loaded, waitOr } from "./fields";
import { explain } from "./sheet";
import { world } from "./world";

interface Entry {
  id: number; time: string; actor?: string; actor_name?: string; for_name?: string; from?: string; action: string; outcome: "done" | "denied" | "failed"; kind?: string; object?: string; object_name?: string;
  project_name?: string; number?: number; reason?: string;
}

const filter = { actor: "", action: "", outcome: "", project: "", span: "" };
let records: Loaded<Entry[]> = { value: null, error: "" };
let marker = "";
let redraw = () => {};
let timer = 0;
let turn = 0;

const spans: [string, string, number][] = [["", "Any time", 0], ["1h", "Last hour", 3600e3], ["1d", "Last day", 86400e3], ["7d", "Last 7 days", 7 * 86400e3], ["30d", "Last 30 days", 30 * 86400e3]];

export async function loadAudit(changed: () => void, more = false): Promise<void> {
  redraw = changed;
  const mine = ++turn;
  const query = new URLSearchParams({ limit: "50" });
  for (const name of ["actor", "outcome", "project"] as const) if (filter[name]) query.set(name, filter[name]);
  if (filter.action) query.set("action", filter.action.includes(".") ? filter.action : filter.action + ".");
  const back = spans.find(([v]) => v === filter.span)![2];
  if (back) query.set("since", new Date(clock.now() - back).toISOString());
  if (more) query.set("marker", marker);
  try {
    const page = await get<{ records: Entry[]; marker?: string }>(`/v1/audit?${query}`);
    if (mine !== turn) return;
    records = { value: more ? [...(records.value ?? []), ...page.records] : page.records, error: "" };
    marker = page.marker ?? "";
  } catch (e) {
    if (mine !== turn) return;
    records = { value: null, error: explain(e) };
  }
  redraw();
}

function set(name: keyof typeof filter, value: string, wait: number): void {
  filter[name] = value;
  clearTimeout(timer);
  timer = window.setTimeout(() => void loadAudit(redraw), wait);
  redraw();
}

export function auditView(): VNode {
  const text = (name: "actor" | "action", label: string, hint: string) => h("label", { key: name }, label, h("input", { name, value: filter[name], placeholder: hint, autocomplete: "off", spellcheck: "false", autocapitalize: "none", oninput: (e: Event) => set(name, (e.target as HTMLInputElement).value.trim(), 300) }));
  const choice = (name: "outcome" | "project" | "span", label: string, choices: [string, string][]) => h("label", { key: name }, label, h("select", { name, value: filter[name], onchange: (e: Event) => set(name, (e.target as HTMLSelectElement).value, 0) }, choices.map(([v, w]) => h("option", { key: "o" + v, value: v }, w))));
  const projects = [...world.projects.values()].sort((a, b) => a.name.localeCompare(b.name)).map((p): [string, string] => [p.id, `${p.organization_name}/${p.name}`]);
  return h("section", { key: "audit", "aria-label": "Audit" },
    h("p", { class: "quiet" }, world.me!.admin ? "Every change, sign-in, revealed secret and denied request, newest first." : "Every change, revealed secret and denied request in the organizations that you own, newest first."),
    h("div", { class: "filters" }, text("actor", "Who", "ann"), text("action", "What", "project, token.create"), choice("outcome", "Outcome", [["", "Any"], ["done", "Done"], ["denied", "Denied"], ["failed", "Failed"]]), choice("project", "Project", [["", "Any"], ...projects]), choice("span", "When", spans.map(([v, w]): [string, string] => [v, w]))),
    waitOr(records, "the audit log", (all) => all.length === 0
      ? h("p", { class: "quiet" }, "Nothing matches.")
      : h("div", null, h("ol", { class: "list audit-list" }, all.map(row)), marker && h("p", null, h("button", { onclick: () => void loadAudit(redraw, true) }, "Older records")))));
}

function row(e: Entry): VNode {
  const when = new Date(Date.parse(e.time));
  const isToday = when.toDateString() === new Date(clock.now()).toDateString();
  const what: Child[] = [e.object_name || "", e.project_name && e.project_name !== e.object_name ? `${e.object_name ? " in " : ""}${e.project_name}` : "", e.number ? `, version ${e.number}` : ""];
  return h("li", { key: e.id, memo: e, "data-action": e.action }, () => [
    h("time", { datetime: e.time, title: when.toLocaleString() }, isToday ? when.toLocaleTimeString([], { hour12: false }) : when.toLocaleString([], { dateStyle: "medium", timeStyle: "short", hour12: false })),
    h("span", null, e.actor_name || (e.actor === "mariposa" ? "Mariposa" : e.actor) || "unknown", e.for_name && h("span", { class: "quiet" }, ` for ${e.for_name}`)),
    h("span", null, h("code", null, e.action), e.outcome !== "done" && h("span", { class: "error" }, ` ${e.outcome}`)),
    h("span", { class: "what" }, ...what, e.reason && h("span", { class: "quiet" }, what.some(Boolean) ? ", " : "", e.reason)),
    h("span", { class: "quiet num" }, e.from ?? ""),
  ]);
}

// The editor of a manifest: the server checks it while a person types, and says what would
// change before it is submitted.

import { Failure, Fault, get, Project, request, send } from "./api";
import type { Editor, create } from "./codemirror";
import { Child, h, VNode } from "./dom";
import { explain } from "./sheet";
import { Rule, valueField } from "./valuefield";
import { pathOf, sentence } from "./views";
import { count, world } from "./world";

interface Plan {
  resources: { kind: string; name: string; change: string; fields: { field: string; before: string; after: string }[]; before: number; after: number }[];
  steps: { step: string }[];
  waits: string[];
  missing: string[];
  declares?: Rule[];
  needs_approval?: string[];
}

interface Draft {
  project: Project | null; // null: a new one
  name: string;
  organization: string;
  organizations: string[]; // in which the person can create projects
  text: string;
  loaded: boolean;
  version: string; // that the text began with
  message: string;
  values: Record<string, string>;
  plan: Plan | null;
  rules: Rule[]; // what the newest manifest without faults declares
  faults: Fault[];
  error: string;
  busy: boolean;
}

let draft: Draft | null = null;
let redraw = () => {};
let timer = 0;
let checks = 0;
let editor: { of: Draft; at: Editor; marks: Fault[] } | null = null;
let library: Promise<{ create: typeof create }> | null = null;

const example = "services:\n  web:\n    image: nginx:1.27\n    scale: 2\n";

/** openEditor begins a draft, unless the same one is open already. */
export function openEditor(project: Project | null, changed: () => void): void {
  redraw = changed;
  if (draft && draft.project?.id === project?.id) return;
  draft = { project, name: "", organization: world.me?.organization_name ?? "", organizations: [], text: project ? "" : example, loaded: !project, version: "", message: "", values: {}, plan: null, rules: [], faults: [], error: "", busy: false };
  if (project) void load(draft);
  else void loadOrganizations(draft);
}

export function closeEditor(): void {
  draft = null;
  editor?.at.close();
  editor = null;
  clearTimeout(timer);
}

async function load(d: Draft): Promise<void> {
  try {
    const [text, versions] = await Promise.all([
      request("GET", `/v1/projects/${d.project!.id}/manifest`, undefined, "application/yaml").then((r) => r.text()),
      get<{ versions: { version: string }[] }>(`/v1/projects/${d.project!.id}/versions?limit=1`),
    ]);
    d.text = text;
    d.version = versions.versions[0]?.version ?? "";
    d.loaded = true;
  } catch (e) {
    d.error = explain(e);
  }
  redraw();
  schedule();
}

async function loadOrganizations(d: Draft): Promise<void> {
  const all = await get<{ organizations: { name: string; role?: string }[] }>("/v1/organizations").catch(() => null);
  d.organizations = (all?.organizations ?? []).filter((o) => o.role).map((o) => o.name);
  if (d.organizations.length > 0 && !d.organizations.includes(d.organization)) d.organization = d.organizations[0];
  redraw();
}

/** schedule checks the draft once typing has stopped. */
function schedule(): void {
  clearTimeout(timer);
  timer = window.setTimeout(() => void check(), 300);
}

async function check(): Promise<void> {
  const d = draft;
  if (!d?.loaded || (!d.project && !d.name)) return;
  const turn = ++checks;
  let plan: Plan | null = null, faults: Fault[] = [], error = "";
  try {
    plan = d.project
      ? await send<Plan>("POST", `/v1/projects/${d.project.id}/plan`, d.text)
      : await send<Plan>("POST", "/v1/plan", { name: d.name, organization: d.organization, manifest: d.text, metadata: given(d) });
  } catch (e) {
    error = explain(e);
    if (e instanceof Failure) faults = e.faults;
  }
  if (draft !== d || turn !== checks) return; // something newer is on its way
  if (plan) d.rules = plan.declares ?? [];
  Object.assign(d, { plan, faults, error });
  redraw();
}

const given = (d: Draft): Record<string, string> => Object.fromEntries(Object.entries(d.values).filter(([, v]) => v !== ""));

async function submit(d: Draft, go: (path: string) => void): Promise<void> {
  d.busy = true;
  redraw();
  try {
    if (d.project) {
      const query = new URLSearchParams({ previous: d.version });
      if (d.message) query.set("message", d.message);
      await send("PUT", `/v1/projects/${d.project.id}/manifest?${query}`, d.text);
      for (const [key, value] of Object.entries(given(d))) await send("PUT", `/v1/projects/${d.project.id}/metadata/${encodeURIComponent(key)}`, { value });
      closeEditor();
      go(pathOf(d.project));
    } else {
      const made = await send<{ id: string }>("POST", "/v1/projects", { name: d.name, organization: d.organization, manifest: d.text, metadata: given(d), message: d.message });
      await world.loadProject(made.id);
      closeEditor();
      go(pathOf(world.projects.get(made.id)!));
    }
  } catch (e) {
    d.error = explain(e);
    d.faults = e instanceof Failure ? e.faults : [];
    d.busy = false;
    redraw();
  }
}

export function editorView(go: (path: string) => void): VNode {
  const d = draft!;
  if (!d.loaded) return h("p", { class: "quiet" }, d.error || "Loading the manifest…");
  const set = (change: Partial<Draft>) => {
    Object.assign(d, change);
    schedule();
    redraw();
  };
  return h("form", {
    class: "editor",
    onsubmit: (e: Event) => {
      e.preventDefault();
      void submit(d, go);
    },
  },
  h("div", { class: "write" },
    !d.project && h("label", { key: "name" }, "Name", h("input", { name: "name", value: d.name, placeholder: "shop", autocomplete: "off", spellcheck: "false", required: true, oninput: (e: Event) => set({ name: (e.target as HTMLInputElement).value }) })),
    !d.project && d.organizations.length > 1 && h("label", { key: "organization" }, "Organization", h("select", { value: d.organization, onchange: (e: Event) => set({ organization: (e.target as HTMLSelectElement).value }) }, d.organizations.map((o) => h("option", { key: o, value: o }, o)))),
    h("p", { class: "label" }, "Manifest"),
    h("div", { key: "manifest" + (d.project?.id ?? ""), id: "manifest", class: "code", use: (el: HTMLElement, isNew: boolean) => write(d, el, isNew, set) }, h("p", { class: "quiet" }, "Loading the editor…")),
    h("div", { class: "faults", role: "status" }, d.faults.map((f, i) => h("p", { key: i, class: "error" },
      f.line ? h("button", { type: "button", class: "link error", onclick: () => editor?.at.goTo(f.line!) }, `Line ${f.line}`) : "", f.line ? ": " : "", f.field && h("code", null, f.field), " ", f.message)),
      d.faults.length === 0 && d.error && h("p", { key: "error", class: "error" }, d.error))),
  h("div", { class: "plan", "aria-live": "polite" }, h("h2", null, "What will happen"), planView(d), asked(d).length > 0 && missingView(d, set),
    d.plan && h("label", { key: "message" }, "Message (optional)", h("input", { name: "message", value: d.message, maxlength: 200, oninput: (e: Event) => { d.message = (e.target as HTMLInputElement).value; } })),
    h("div", { key: "buttons", class: "buttons" }, h("button", { type: "submit", class: "primary", disabled: !d.plan || d.busy || (d.project !== null && isEmpty(d.plan)) }, d.busy ? "Submitting…" : verb(d)))));
}

const isEmpty = (p: Plan): boolean => p.resources.every((r) => r.change === "unchanged") && p.steps.length === 0;

function verb(d: Draft): string {
  const what = d.project ? "Deploy" : "Create";
  if (!d.plan) return what;
  const starts = d.plan.steps.filter((s) => s.step === "create").length;
  const stops = d.plan.steps.filter((s) => s.step === "remove" || s.step === "keep").length;
  const parts = [starts && `start ${starts}`, stops && `stop ${stops}`].filter(Boolean);
  return parts.length ? `${what}: ${parts.join(", ")}` : what;
}

function planView(d: Draft): VNode {
  if (!d.project && !d.name) return h("p", { key: "plan", class: "quiet" }, "Give the project a name.");
  if (!d.plan) return h("p", { key: "plan", class: "quiet" }, d.error ? "Nothing, until the faults are mended." : "Checking…");
  const changes = d.plan.resources.filter((r) => r.change !== "unchanged");
  return h("div", { key: "plan" },
    changes.length === 0 && h("p", { key: "none", class: "quiet" }, "Nothing changes."),
    h("ul", { class: "changes" }, changes.map((r) => h("li", { key: r.kind + r.name },
      h("b", null, r.name), h("span", { class: "quiet" }, ` ${r.kind === "service" ? "" : r.kind + " "}${words[r.change] ?? r.change}`), scaleWords(r),
      h("ul", null, r.fields.slice(0, 20).map((f) => h("li", { key: f.field, class: "field" }, h("code", null, f.field), " ", f.before && h("del", null, f.before), f.before && f.after && " ", f.after && h("ins", null, f.after))))))),
    d.plan.waits.map((w, i) => h("p", { key: "w" + i, class: "reason" }, ...sentence(w))),
    (d.plan.needs_approval?.length ?? 0) > 0 && h("p", { key: "approval", class: "reason" }, `An operator has to approve it, because it uses protected secrets: ${d.plan.needs_approval!.join(", ")}.`));
}

const words: Record<string, string> = { create: "is created", update: "is updated in place", replace: "is replaced", scale: "is scaled", delete: "is deleted", keep: "is kept, unused" };

function scaleWords(r: Plan["resources"][0]): Child {
  if (r.kind !== "service" || (r.before === r.after && r.change !== "create")) return r.change === "replace" ? `, ${count(r.after, "instance")}` : "";
  return r.change === "create" ? `, ${count(r.after, "instance")}` : `, from ${r.before} to ${count(r.after, "instance")}`;
}

/** asked lists the values that the manifest requires and that are not set yet. Those that the person
 * has entered here stay. */
function asked(d: Draft): Rule[] {
  return d.rules.filter((r) => d.plan?.missing.includes(r.key) || d.values[r.key] !== undefined);
}

/** missingView asks for the values that the manifest requires, as it declares them. */
function missingView(d: Draft, set: (change: Partial<Draft>) => void): VNode {
  return h("div", { key: "missing", class: "missing" }, h("p", null, "The manifest needs these values. Nothing starts until they are set."),
    asked(d).map((r) => valueField(r, d.values[r.key] ?? "", (v) => {
      d.values[r.key] = v;
    }, (v) => set({ values: { ...d.values, [r.key]: v } }), redraw)));
}

/** write shows the text of a draft in its element, in an editor that is loaded first. */
function write(d: Draft, el: HTMLElement, isNew: boolean, set: (change: Partial<Draft>) => void): void {
  if (isNew) void open(d, el, set);
  if (editor?.of !== d || editor.marks === d.faults) return;
  editor.marks = d.faults;
  editor.at.setMarks(d.faults.map((f) => ({ line: f.line ?? 0, message: f.message })));
}

async function open(d: Draft, el: HTMLElement, set: (change: Partial<Draft>) => void): Promise<void> {
  try {
    library ??= import("/assets/codemirror.js") as Promise<{ create: typeof create }>;
    const { create: make } = await library;
    if (draft !== d || !el.isConnected) return;
    editor?.at.close();
    editor = { of: d, at: make(el, d.text, "Manifest", (text) => set({ text })), marks: [] };
  } catch {
    library = null;
    d.loaded = false;
    d.error = "The editor did not load. Reload the page.";
  }
  redraw();
}

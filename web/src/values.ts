// The values of a project: what the manifest declares, what is set, who uses it and who changed it.

import { get, Project, send } from "./api";
import { Child, h, VNode } from "./dom";
import { ask, explain, redrawSheet } from "./sheet";
import { hideSecrets, Rule, valueField } from "./valuefield";
import { pathOf } from "./views";
import { ago, count, may } from "./world";

interface Value extends Rule {
  value: string; set: boolean; protected?: boolean; cas?: string; changed?: string | null; declared: boolean; used_by: string[];
}

interface Version { number: number; created: string; author: string; message: string; metadata_changed: string[] }

let shown: { project: string; keys: Value[] | null; missing: string[]; error: string } = { project: "", keys: null, missing: [], error: "" };
const revealed = new Map<string, string>();
const histories = new Map<string, Version[]>();

/** A revealed secret is masked again after this time. */
const revealFor = 60_000;

export async function loadValues(project: string, redraw: () => void): Promise<void> {
  if (shown.project !== project) {
    shown = { project, keys: null, missing: [], error: "" };
    closeValues();
  }
  try {
    const got = await get<{ keys: Value[]; missing: string[] }>(`/v1/projects/${project}/metadata`);
    if (shown.project !== project) return;
    shown = { project, keys: got.keys, missing: got.missing, error: "" };
    for (const key of histories.keys()) histories.set(key, await historyOf(project, key));
  } catch (e) {
    shown.error = explain(e);
  }
  redraw();
}

/** closeValues forgets the secrets that were revealed. */
export function closeValues(): void {
  revealed.clear();
  histories.clear();
  hideSecrets();
}

async function historyOf(project: string, key: string): Promise<Version[]> {
  const all: Version[] = [];
  for (let marker = "", pages = 0; pages < 5 && all.length < 10; pages++) {
    const page = await get<{ versions: Version[]; marker?: string }>(`/v1/projects/${project}/versions?limit=100${marker && "&marker=" + encodeURIComponent(marker)}`);
    all.push(...page.versions.filter((v) => v.metadata_changed?.includes(key)));
    if (!page.marker) break;
    marker = page.marker;
  }
  return all.slice(0, 10);
}

export function valuesView(p: Project, redraw: () => void): VNode {
  if (shown.error) return h("p", { class: "error", role: "alert" }, shown.error);
  if (!shown.keys || shown.project !== p.id) return h("p", { class: "quiet" }, "Loading values…");
  const missing = shown.keys.filter((k) => shown.missing.includes(k.key));
  const rest = shown.keys.filter((k) => !shown.missing.includes(k.key));
  return h("div", { class: "values" },
    missing.length > 0 && h("p", { key: "missing", class: "reason" }, `${count(missing.length, "required value")} ${missing.length === 1 ? "is" : "are"} missing. Nothing in this project starts until ${missing.length === 1 ? "it is" : "they are"} set.`),
    shown.keys.length === 0 && h("p", { key: "none", class: "quiet" }, "The manifest declares no values, and none are set. A manifest refers to a value with ", h("code", null, "{{ .meta.KEY }}"), "."),
    h("ul", { key: "list", class: "list values-list" }, [...missing, ...rest].map((k) => valueRow(p, k, redraw))),
    may(p.id, "deployer") && p.goal !== "deleted" && h("p", { key: "add" }, h("button", { onclick: () => askAdd(p, redraw) }, "Add a value…")));
}

function valueRow(p: Project, k: Value, redraw: () => void): VNode {
  const history = histories.get(k.key);
  const open = revealed.get(k.key);
  const mayChange = may(p.id, k.protected ? "operator" : "deployer") && p.goal !== "deleted";
  return h("li", { key: k.key, "data-key": k.key },
    h("span", { class: "name" }, h("b", null, k.key), k.secret && h("span", { class: "tag" }, "secret"), k.protected && h("span", { class: "tag" }, "protected"), k.required && h("span", { class: "tag" }, "required"),
      k.description && h("span", { class: "hint" }, k.description)),
    h("span", { class: "value" }, valueText(k, open)),
    h("span", { class: "quiet" }, k.used_by.length ? `Used by ${k.used_by.join(", ")}` : k.declared ? "Not used" : "Not declared, so nothing can use it"),
    h("span", { class: "quiet" }, k.changed ? ago(k.changed) : ""),
    h("span", { class: "acts" },
      k.secret && k.set && may(p.id, "operator") && (open === undefined
        ? h("button", { key: "reveal", class: "plain", onclick: () => askReveal(p, k, redraw) }, "Reveal…")
        : h("button", {
          key: "hide", class: "plain",
          onclick: () => {
            revealed.delete(k.key);
            redraw();
          },
        }, "Hide")),
      k.set && h("button", { key: "history", class: "plain", "aria-expanded": history ? "true" : "false", onclick: () => void toggleHistory(p, k.key, redraw) }, "History"),
      mayChange && k.set && h("button", { key: "remove", class: "plain", onclick: () => askRemove(p, k, redraw) }, "Remove…"),
      mayChange && h("button", { key: "set", class: k.set ? "plain" : "", onclick: () => askSet(p, k, redraw) }, k.set ? "Change…" : "Set…")),
    history && historyView(p, k, history));
}

function valueText(k: Value, open: string | undefined): Child {
  if (open !== undefined) return h("code", { key: "open", class: "revealed" }, open);
  if (k.set) return k.secret ? h("span", { key: "masked", class: "quiet" }, h("span", { class: "hidden" }, "masked"), h("span", { "aria-hidden": "true" }, "••••")) : k.value === "" ? h("span", { key: "empty", class: "quiet" }, "empty") : h("code", { key: "set" }, k.value);
  if (k.default !== undefined) return h("span", { key: "default" }, h("code", null, k.default), h("span", { class: "quiet" }, " by default"));
  return h("span", { key: "unset", class: k.required ? "error" : "quiet" }, k.required ? "missing" : "not set");
}

async function toggleHistory(p: Project, key: string, redraw: () => void): Promise<void> {
  if (!histories.delete(key)) {
    try {
      histories.set(key, await historyOf(p.id, key));
    } catch (e) {
      ask({ title: `History of ${key}`, says: [explain(e)], verb: "" });
    }
  }
  redraw();
}

function historyView(p: Project, k: Value, history: Version[]): VNode {
  if (history.length === 0) return h("p", { class: "quiet more" }, "No version that is kept has changed this value.");
  return h("ol", { class: "more" }, history.map((v) => h("li", { key: v.number },
    h("a", { href: pathOf(p) + "/versions" }, `Version ${v.number}`), h("span", { class: "quiet" }, ` by ${v.author}, ${ago(v.created)}`), v.message && `: ${v.message}`)),
  k.secret && h("li", { key: "note", class: "quiet" }, "Earlier values of secrets are not shown."));
}

function askReveal(p: Project, k: Value, redraw: () => void): void {
  ask({
    title: `Reveal ${k.key}`, verb: "Reveal", keep: "Keep it masked",
    says: ["The value is shown on this page for a minute. The audit log records that you have read it."],
    run: async () => {
      revealed.set(k.key, (await get<Value>(`/v1/projects/${p.id}/metadata/${encodeURIComponent(k.key)}?reveal=true`)).value);
      setTimeout(() => {
        revealed.delete(k.key);
        redraw();
      }, revealFor);
      redraw();
    },
  });
}

/** effect says what a changed value does to the services that use it. */
function effect(k: Value): string[] {
  if (k.used_by.length === 0) return ["No service uses it."];
  return [`${k.used_by.join(", ")} ${k.used_by.length === 1 ? "uses" : "use"} it. Values that instances read while they run change at once. Instances that got it at their start keep the earlier one and show as outdated, unless the manifest says that they are replaced.`];
}

interface Changed { reason?: string; task?: string | null }

const afterwards = (r: Changed): Child[] | void => (r.reason ? [`It is set. ${r.reason}.`] : undefined);

function askSet(p: Project, k: Value, redraw: () => void): void {
  let value = k.set && !k.secret ? k.value : "";
  ask({
    title: k.set ? `Change ${k.key}` : `Set ${k.key}`, verb: k.set ? "Change" : "Set", keep: "Cancel",
    says: shown.missing.includes(k.key) ? ["The project waits for this value."] : effect(k),
    fields: () => [valueField(k, value, (v) => {
      value = v;
      redrawSheet();
    }, () => {}, redrawSheet)],
    ready: () => value !== "" && (!k.set || k.secret || value !== k.value),
    run: async () => {
      const r = await send<Changed>("PUT", `/v1/projects/${p.id}/metadata/${encodeURIComponent(k.key)}?cas=${k.cas || 0}`, { value });
      revealed.delete(k.key);
      await loadValues(p.id, redraw);
      return afterwards(r);
    },
  });
}

function askRemove(p: Project, k: Value, redraw: () => void): void {
  const says = k.required ? ["The manifest requires it: until it is set again, nothing new starts in this project."] : k.default !== undefined ? [`The default applies again: ${k.default}.`] : effect(k);
  ask({
    title: `Remove ${k.key}`, verb: "Remove", says: [...says, "Versions keep it: a revert brings it back."],
    run: async () => {
      await send("DELETE", `/v1/projects/${p.id}/metadata/${encodeURIComponent(k.key)}?cas=${k.cas || 0}`);
      revealed.delete(k.key);
      await loadValues(p.id, redraw);
    },
  });
}

function askAdd(p: Project, redraw: () => void): void {
  const draft = { key: "", value: "", secret: false };
  ask({
    title: "Add a value", verb: "Add", keep: "Cancel", says: ["A value can be set before the manifest declares it. Services use it once the manifest refers to it."],
    fields: () => [
      h("label", { key: "key" }, "Key", h("input", { name: "key", value: draft.key, autocomplete: "off", spellcheck: "false", autocapitalize: "none", oninput: (e: Event) => {
        draft.key = (e.target as HTMLInputElement).value.trim();
        redrawSheet();
      } })),
      h("label", { key: "secret", class: "check" }, h("input", { name: "secret", type: "checkbox", checked: draft.secret, onchange: (e: Event) => {
        draft.secret = (e.target as HTMLInputElement).checked;
        redrawSheet();
      } }), "Secret: masked, and only operators can reveal it"),
      valueField({ key: "value", required: false, secret: draft.secret }, draft.value, (v) => {
        draft.value = v;
        redrawSheet();
      }, () => {}, redrawSheet),
    ],
    ready: () => draft.key !== "" && draft.value !== "",
    run: async () => {
      const r = await send<Changed>("PUT", `/v1/projects/${p.id}/metadata/${encodeURIComponent(draft.key)}?cas=0`, { value: draft.value, secret: draft.secret });
      await loadValues(p.id, redraw);
      return afterwards(r);
    },
  });
}

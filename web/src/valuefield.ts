// A field for a value of a project, as the manifest declares it: choices, types, hints, and a
// generator for secrets.

import { h, VNode } from "./dom";

export interface Rule {
  key: string; description?: string; required: boolean; secret: boolean; type?: string; pattern?: string; choices?: string[]; default?: string; generate?: number;
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/** generate makes a random value of letters and digits. */
export function generate(length: number): string {
  let out = "";
  while (out.length < length) {
    for (const b of crypto.getRandomValues(new Uint8Array(64))) if (b < 248 && out.length < length) out += letters[b % 62]; // evenly
  }
  return out;
}

const shownSecrets = new Set<string>();

/** valueField shows a field for a value. Input is called with each letter, and done when the field
 * is left. */
export function valueField(rule: Rule, value: string, input: (value: string) => void, done: (value: string) => void, redraw: () => void): VNode {
  const name = "value-" + rule.key;
  const text = (e: Event) => (e.target as HTMLInputElement).value;
  const choices = rule.choices?.length ? rule.choices : rule.type === "boolean" ? ["true", "false"] : null;
  const set = (v: string) => {
    input(v);
    done(v);
  };
  const field = choices
    ? h("select", { name, value, onchange: (e: Event) => set(text(e)) },
      h("option", { value: "" }, rule.default !== undefined ? `Default: ${rule.default}` : "Choose…"), choices.map((c) => h("option", { key: "c" + c, value: c }, c)))
    : h("textarea", {
      name, value, rows: Math.min(8, Math.max(1, value.split("\n").length)), autocomplete: "off", spellcheck: "false", autocapitalize: "none", placeholder: rule.default ?? "",
      class: rule.secret && !shownSecrets.has(rule.key) ? "value masked" : "value", inputmode: rule.type === "integer" ? "numeric" : null,
      oninput: (e: Event) => input(text(e)), onchange: (e: Event) => done(text(e)),
    });
  const hints = [
    rule.type === "integer" && "A whole number.",
    rule.pattern && "Must match ",
    rule.generate && !value ? `If you leave it empty, Mariposa generates ${rule.generate} letters and digits.` : "",
  ];
  return h("div", { key: "field-" + rule.key, class: "value-field" },
    h("label", null, h("span", null, h("b", null, rule.key), rule.secret && h("span", { class: "quiet" }, " secret")), rule.description && h("span", { class: "hint" }, rule.description), field),
    hints.some(Boolean) && h("p", { key: "hints", class: "hint" }, hints[0], hints[0] && " ", hints[1], rule.pattern && h("code", null, rule.pattern), rule.pattern && ". ", hints[2]),
    rule.secret && !choices && h("p", { key: "tools", class: "tools" },
      h("button", {
        type: "button", class: "link",
        onclick: () => {
          if (!shownSecrets.delete(rule.key)) shownSecrets.add(rule.key);
          redraw();
        },
      }, shownSecrets.has(rule.key) ? "Hide" : "Show"),
      !rule.pattern && rule.type !== "integer" && h("button", {
        type: "button", class: "link",
        onclick: () => {
          set(generate(rule.generate || 32));
          redraw();
        },
      }, "Generate")));
}

/** hideSecrets masks all fields again. */
export const hideSecrets = (): void => shownSecrets.clear();

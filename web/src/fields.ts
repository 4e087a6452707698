// Fields of forms, and other parts that the pages of people and organizations share.

import { Child, h, VNode } from "./dom";
import { redrawSheet } from "./sheet";

const textOf = (e: Event): string => (e.target as HTMLInputElement).value;

/** textField is a field for one line of text. */
export function textField(name: string, label: string, value: string, set: (v: string) => void, more: Record<string, unknown> = {}): VNode {
  return h("label", { key: name }, label, h("input", {
    name, value, autocomplete: "off", spellcheck: "false", autocapitalize: "none", ...more,
    oninput: (e: Event) => {
      set(textOf(e));
      redrawSheet();
    },
  }));
}

/** selectField is a field with choices: values and their words. */
export function selectField(name: string, label: string, value: string, choices: [string, string][], set: (v: string) => void): VNode {
  return h("label", { key: name }, label, h("select", {
    name, value,
    onchange: (e: Event) => {
      set(textOf(e));
      redrawSheet();
    },
  }, choices.map(([v, words]) => h("option", { key: "o" + v, value: v }, words))));
}

export function checkField(name: string, label: string, checked: boolean, set: (v: boolean) => void): VNode {
  return h("label", { key: name, class: "check" }, h("input", {
    name, type: "checkbox", checked,
    onchange: (e: Event) => {
      set((e.target as HTMLInputElement).checked);
      redrawSheet();
    },
  }), label);
}

/** A resource that is loaded when a page is opened, and says why if that fails. */
export interface Loaded<T> { value: T | null; error: string }

/** waitOr shows what was loaded, or why not. */
export function waitOr<T>(l: Loaded<T>, what: string, view: (v: T) => Child): Child {
  if (l.error) return h("p", { key: "error", class: "error", role: "alert" }, l.error);
  if (l.value === null) return h("p", { key: "loading", class: "quiet" }, `Loading ${what}…`);
  return view(l.value);
}

/** sectionHead is the heading of a section, with the button that adds to it. */
export function sectionHead(title: string, verb: string, run: (() => void) | null): VNode {
  return h("div", { key: "head-" + title, class: "section-head" }, h("h2", null, title), run && h("button", { onclick: run }, verb));
}

const units: [string, number][] = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** size says a number of bytes as people write it. */
export function size(n: number): string {
  for (const [unit, bytes] of units) if (n >= bytes) return `${Number.isInteger(n / bytes) ? n / bytes : (n / bytes).toFixed(1)} ${unit}`;
  return `${n} B`;
}

/** parseSize reads a number of bytes: 64g, 1.5 GiB, 512M; null: it is none. */
export function parseSize(text: string): number | null {
  const m = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?$/i.exec(text.trim());
  return m ? Math.round(Number(m[1]) * 1024 ** " kmgt".indexOf(m[2].toLowerCase() || " ")) : null;
}

// A sheet says what a change will do, before it is made.

import { Failure } from "./api";
import { Child, h, VNode } from "./dom";

export interface Sheet {
  title: string;
  /** What will happen, one sentence each. */
  says: Child[];
  /** The verb on the button; empty: there is nothing to do but close. */
  verb: string;
  /** Makes the change; what it returns is said afterwards, and without it the sheet closes. */
  run?: () => Promise<Child[] | void>;
}

let shown: Sheet | null = null;
let busy = false;
let error = "";
let redraw = () => {};
let before: HTMLElement | null = null;

export function onSheet(changed: () => void): void {
  redraw = changed;
}

export function ask(sheet: Sheet): void {
  before = document.activeElement as HTMLElement | null;
  shown = sheet;
  busy = false;
  error = "";
  redraw();
}

export function closeSheet(): void {
  shown = null;
  redraw();
  before?.focus?.();
}

export const isAsking = (): boolean => shown !== null;

export const explain = (e: unknown): string =>
  e instanceof Failure ? e.message + (e.status >= 500 && e.request ? ` (request ${e.request})` : "") : "This failed unexpectedly: " + String(e);

async function confirm(): Promise<void> {
  const s = shown;
  if (!s?.run || busy) return;
  busy = true;
  error = "";
  redraw();
  try {
    const says = await s.run();
    if (shown !== s) return;
    if (says) shown = { title: s.title, says, verb: "" };
    else closeSheet();
  } catch (e) {
    error = explain(e);
  }
  busy = false;
  redraw();
}

export function sheetView(): VNode | null {
  const s = shown;
  if (!s) return null;
  return h("dialog", {
    class: "sheet", "aria-labelledby": "sheet-title",
    oncancel: (e: Event) => {
      e.preventDefault();
      closeSheet();
    },
    use: (el: HTMLElement, isNew: boolean) => {
      if (isNew) requestAnimationFrame(() => {
        if (!(el as HTMLDialogElement).open && el.isConnected) (el as HTMLDialogElement).showModal();
      });
    },
  },
  h("form", {
    method: "dialog",
    onsubmit: (e: Event) => {
      e.preventDefault();
      void confirm();
    },
  },
  h("h2", { id: "sheet-title" }, s.title),
  s.says.map((line, i) => h("p", { key: i }, line)),
  error && h("p", { key: "error", class: "error", role: "alert" }, error),
  h("div", { key: "buttons", class: "buttons" },
    h("button", { type: "button", onclick: closeSheet }, s.verb ? "Keep as it is" : "Close"),
    s.verb && h("button", { type: "submit", class: "primary", disabled: busy }, busy ? "Working…" : s.verb))));
}

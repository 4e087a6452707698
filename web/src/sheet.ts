// A sheet says what a change will do, before it is made. If the server wants to know that it is
// still the same person, the sheet asks for that too.

import { Failure, send } from "./api";
import { Child, h, VNode } from "./dom";
import { identity } from "./identity";

export interface Sheet {
  title: string;
  /** What will happen, one sentence each. A function is asked again with every change. */
  says: Child[] | (() => Child[]);
  /** Fields of a form, drawn again with every change. */
  fields?: () => Child[];
  /** Whether the fields are complete; default: always. */
  ready?: () => boolean;
  /** The verb on the button; empty: there is nothing to do but close. */
  verb: string;
  /** The text of the other button; default: Keep as it is. */
  keep?: string;
  /** Whether the server has asked already who is there. */
  proves?: boolean;
  /** Makes the change; what it returns is said afterwards, and without it the sheet closes. */
  run?: () => Promise<Child[] | void>;
}

let shown: Sheet | null = null;
let busy = false;
let error = "";
let redraw = () => {};
let before: HTMLElement | null = null;
/** The proof that the server asks for, before it makes the change. */
let proof: { byToken: boolean; text: string } | null = null;

export function onSheet(changed: () => void): void {
  redraw = changed;
}

/** redrawSheet shows the fields of the sheet again. */
export const redrawSheet = (): void => redraw();

export function ask(sheet: Sheet): void {
  before = document.activeElement as HTMLElement | null;
  shown = sheet;
  busy = false;
  error = "";
  proof = sheet.proves ? { byToken: !identity.hasPassword, text: "" } : null;
  redraw();
}

export function closeSheet(): void {
  shown = null;
  proof = null;
  redraw();
  before?.focus?.();
}

export const isAsking = (): boolean => shown !== null;

export const explain = (e: unknown): string =>
  e instanceof Failure ? e.message + (e.status >= 500 && e.request ? ` (request ${e.request})` : "") : "This failed unexpectedly: " + String(e);

async function confirm(): Promise<void> {
  const s = shown;
  if (!s?.run || busy || (s.ready && !s.ready())) return;
  busy = true;
  error = "";
  redraw();
  try {
    if (proof) {
      await send("POST", "/v1/session/proof", proof.byToken ? { token: proof.text.trim() } : { password: proof.text });
      proof = null;
    }
    const says = await s.run();
    if (shown !== s) return;
    if (says) shown = { title: s.title, says, verb: "" };
    else closeSheet();
  } catch (e) {
    if (e instanceof Failure && e.code === "ReauthenticationRequired") proof = { byToken: !identity.hasPassword, text: "" };
    else error = explain(e);
    if (proof) proof.text = "";
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
  (typeof s.says === "function" ? s.says() : s.says).map((line, i) => h("p", { key: i }, line)),
  !proof && s.fields && h("div", { key: "fields", class: "fields" }, s.fields()),
  proof && proofView(proof),
  error && h("p", { key: "error", class: "error", role: "alert" }, error),
  h("div", { key: "buttons", class: "buttons" },
    h("button", { key: "keep", type: "button", onclick: closeSheet }, s.verb ? s.keep ?? "Keep as it is" : "Close"),
    s.verb && h("button", { key: "verb", type: "submit", class: "primary", disabled: busy || (proof ? !proof.text : s.ready ? !s.ready() : false) }, busy ? "Working…" : proof ? "Confirm" : s.verb))));
}

/** proofView asks who is there: the browser may be in other hands. */
function proofView(p: { byToken: boolean; text: string }): VNode {
  return h("div", { key: "proof", class: "fields proof" },
    h("p", null, "Confirm that it is you. This is asked again after 10 minutes."),
    h("label", { key: p.byToken ? "token" : "password" }, p.byToken ? "One of your tokens" : "Password", h("input", {
      name: "proof", type: "password", autocomplete: p.byToken ? "off" : "current-password", value: p.text,
      use: (el: HTMLElement, isNew: boolean) => {
        if (isNew) requestAnimationFrame(() => el.focus());
      },
      oninput: (e: Event) => {
        p.text = (e.target as HTMLInputElement).value;
        redraw();
      },
    })),
    !identity.hasPassword && !identity.provider && h("p", { key: "none", class: "quiet" }, "You have no password. An admin sets one with ", h("code", null, "mariposa user password"), "."),
    h("p", { key: "other" },
      identity.hasPassword && h("button", {
        key: "switch", class: "link", type: "button",
        onclick: () => {
          proof = { byToken: !p.byToken, text: "" };
          error = "";
          redraw();
        },
      }, p.byToken ? "Use the password instead" : "Use a token instead"),
      identity.provider && h("button", { key: "again", class: "link", type: "button", onclick: () => identity.again() }, `Sign in again with ${identity.provider}`)));
}

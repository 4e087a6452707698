// The page for people who are not signed in.

import { get, send } from "./api";
import { h, VNode } from "./dom";
import { explain } from "./sheet";

let byToken = false;
let busy = false;
let error = "";

/** The provider at which people can sign in too; null: not known yet. */
let provider: string | null = null;
let asked = false;

async function loadWays(redraw: () => void): Promise<void> {
  if (asked) return;
  asked = true;
  provider = (await get<{ provider?: string }>("/v1/sign-in").catch(() => null))?.provider ?? "";
  redraw();
}

/** hasReturned reports whether a provider has sent the person back, signed in. */
export function hasReturned(): boolean {
  if (location.hash !== "#signed-in") return false;
  history.replaceState(null, "", location.pathname);
  return true;
}

/** linkInAddress returns the secret of a sign-in link, and removes it from the address. */
export function linkInAddress(): string {
  const prefix = "#sign-in=";
  if (!location.hash.startsWith(prefix)) return "";
  const secret = location.hash.slice(prefix.length);
  history.replaceState(null, "", location.pathname);
  return secret;
}

/** The cookie of the session is hidden from scripts. The id of the person saves a request that would
 * be refused, and tells other tabs who is there. */
const hint = "mariposa-signed-in";
export const mayBeSignedIn = (): boolean => localStorage.getItem(hint) !== null;
export const rememberSignIn = (person: string): void => (person ? localStorage.setItem(hint, person) : localStorage.removeItem(hint));

/** onOtherSignIn calls a function with the id of the person who signs in in another tab. */
export function onOtherSignIn(then: (person: string) => void): void {
  addEventListener("storage", (e) => e.key === hint && then(e.newValue ?? ""));
}

/** signInBy signs in by a link, and returns why that failed. */
export async function signInBy(link: string): Promise<string> {
  try {
    await send("POST", "/v1/sessions", { link });
    error = "";
  } catch (e) {
    error = explain(e);
  }
  return error;
}

export function signInView(done: () => Promise<void>, redraw: () => void): VNode {
  const submit = async (e: SubmitEvent) => {
    e.preventDefault();
    const form = e.target as HTMLFormElement;
    const field = (name: string) => (form.elements.namedItem(name) as HTMLInputElement | null)?.value ?? "";
    busy = true;
    error = "";
    redraw();
    try {
      await send("POST", "/v1/sessions", byToken ? { token: field("token").trim() } : { user: field("user").trim(), password: field("password") });
      form.reset();
      await done();
    } catch (e) {
      error = explain(e);
    }
    busy = false;
    redraw();
  };
  void loadWays(redraw);
  return h("main", { key: "sign-in", class: "sign-in" },
    h("h1", null, "Mariposa"),
    provider && h("p", { key: "provider", class: "provider" }, h("a", { class: "button", "data-plain": "", href: `/v1/oidc/sign-in?return=${encodeURIComponent(location.pathname)}` }, `Sign in with ${provider}`)),
    h("form", { onsubmit: submit },
      byToken
        ? h("label", { key: "token" }, "Token", h("input", { name: "token", type: "password", autocomplete: "off", required: true, use: focusFirst }))
        : h("label", { key: "user" }, "User", h("input", { name: "user", autocomplete: "username", autocapitalize: "none", spellcheck: "false", required: true, use: focusFirst })),
      !byToken && h("label", { key: "password" }, "Password", h("input", { name: "password", type: "password", autocomplete: "current-password", required: true })),
      error && h("p", { key: "error", class: "error", role: "alert" }, error),
      h("button", { key: "submit", type: "submit", class: provider ? "" : "primary", disabled: busy }, busy ? "Signing in…" : "Sign in")),
    h("p", null, h("button", {
      class: "link", type: "button",
      onclick: () => {
        byToken = !byToken;
        error = "";
        redraw();
      },
    }, byToken ? "Use a password instead" : "Use a token instead")),
    h("p", { class: "quiet" }, "With the command line, ", h("code", null, "mariposa open"), " prints a link that signs you in. An admin sets passwords with ", h("code", null, "mariposa user password"), "."));
}

function focusFirst(el: HTMLElement, isNew: boolean): void {
  if (isNew) requestAnimationFrame(() => el.focus());
}

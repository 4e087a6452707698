// The account of the person who is signed in: password, sessions and tokens.

import { clock, get, send } from "./api";
import { Child, h, VNode } from "./dom";
import { Loaded, sectionHead, selectField, textField, waitOr } from "./fields";
import { identity } from "./identity";
import { ask, explain } from "./sheet";
import { ago, count, span, world } from "./world";

interface Token {
  id: string; name: string; use: string; role?: string; project?: string; project_name?: string; organization?: string; organization_name?: string; created: string; expires: string | null;
  last_used: string | null; last_from?: string; parent_name?: string; current?: boolean; made?: Token[]; secret?: string;
}

let tokens: Loaded<Token[]> = { value: null, error: "" };
let redraw = () => {};

export async function loadAccount(changed: () => void): Promise<void> {
  redraw = changed;
  try {
    tokens = { value: (await get<{ tokens: Token[] }>("/v1/tokens")).tokens, error: "" };
  } catch (e) {
    tokens = { value: null, error: explain(e) };
  }
  redraw();
}

const isBounded = (): boolean => {
  const t = world.me!.token as { role?: string; project?: string; organization?: string };
  return Boolean(t.role || t.project || t.organization);
};

export function accountView(): VNode {
  const me = world.me!;
  return h("main", { key: "account", class: "admin" },
    h("h1", null, "Your account"),
    h("p", { class: "quiet" }, me.name, me.admin ? ", admin of the installation" : ""),
    h("section", { key: "password", "aria-label": "Password" },
      sectionHead("Password", "Change…", identity.hasPassword && !isBounded() ? askPassword : null),
      !identity.hasPassword && h("p", { class: "quiet" }, "You have no password for this page. An admin of the installation sets the first one: ", h("code", null, `mariposa user password ${me.name}`)),
      identity.hasPassword && h("p", { class: "quiet" }, isBounded() ? "This session is limited to a part of your rights, so it cannot change your password." : "Another password ends your other sessions. Tokens stay valid.")),
    h("section", { key: "sessions", "aria-label": "Sessions" }, sectionHead("Sessions", "End all others…", others().length > 1 ? askEndOthers : null),
      waitOr(tokens, "sessions", (all) => h("ul", { class: "list sessions" }, all.filter((t) => t.use === "session").sort((a, b) => Number(b.current ?? 0) - Number(a.current ?? 0) || b.created.localeCompare(a.created)).map(sessionRow)))),
    h("section", { key: "tokens", "aria-label": "Tokens" }, sectionHead("Tokens", "Create a token…", askToken),
      h("p", { class: "quiet" }, "Programs and the command line use tokens. A token has your rights, or a part of them."),
      waitOr(tokens, "tokens", (all) => {
        const own = all.filter((t) => t.use === "user" || t.use === "admin");
        return own.length ? h("ul", { class: "list tokens" }, own.map(tokenRow)) : h("p", { class: "quiet" }, "You have no tokens.");
      })));
}

const others = (): Token[] => (tokens.value ?? []).filter((t) => t.use === "session" && !t.current);

const lastUsed = (t: Token): string => (t.last_used ? `used ${ago(t.last_used)}${t.last_from ? " from " + t.last_from : ""}` : "never used");
const ends = (t: Token): string => (t.expires ? `ends in ${span(Date.parse(t.expires) - clock.now())}` : "does not expire");

function sessionRow(t: Token): VNode {
  return h("li", { key: t.id, "data-token": t.name },
    h("span", { class: "name" }, h("b", null, t.current ? "This browser" : "Another browser"), t.role && h("span", { class: "tag" }, t.role)),
    h("span", { class: "quiet" }, `signed in ${ago(t.created)}${t.parent_name ? ` by token ${t.parent_name}` : ""}`), h("span", { class: "quiet" }, lastUsed(t)), h("span", { class: "quiet" }, ends(t)),
    h("span", { class: "acts" }, !t.current && h("button", { class: "plain", onclick: () => askEnd(t) }, "End…")));
}

function tokenRow(t: Token): VNode {
  const limits = [t.role && `at most ${t.role}`, t.project && `only project ${t.project_name ?? "that you no longer see"}`, t.organization && !t.project && `only in ${t.organization_name ?? "an organization that you no longer see"}`].filter(Boolean);
  return h("li", { key: t.id, "data-token": t.name },
    h("span", { class: "name" }, h("b", null, t.name), t.use === "admin" && h("span", { class: "tag" }, "first token")),
    h("span", { class: "quiet" }, limits.length ? limits.join(", ") : "all your rights"), h("span", { class: "quiet" }, lastUsed(t)), h("span", { class: "quiet" }, ends(t)),
    h("span", { class: "acts" }, h("button", { class: "plain", onclick: () => void askRevoke(t) }, "Revoke…")));
}

function askEnd(t: Token): void {
  ask({
    title: "End a session", verb: "End the session", says: [`The browser that signed in ${ago(t.created)} has to sign in again. Tokens that were created in it stay valid.`],
    run: async () => {
      await send("DELETE", `/v1/tokens/${t.id}?cascade=true`);
      await loadAccount(redraw);
    },
  });
}

function askEndOthers(): void {
  const all = others();
  ask({
    title: "End all other sessions", verb: "End them", says: [`${count(all.length, "browser")} have to sign in again, this one does not. Tokens that were created in them stay valid.`],
    run: async () => {
      for (const t of all) await send("DELETE", `/v1/tokens/${t.id}?cascade=true`);
      await loadAccount(redraw);
    },
  });
}

/** askRevoke says which other tokens would end too. */
async function askRevoke(t: Token): Promise<void> {
  let made: Token[] = [];
  const collect = (list: Token[] = []): void => list.forEach((one) => {
    made.push(one);
    collect(one.made);
  });
  try {
    collect((await get<Token>(`/v1/tokens/${t.id}`)).made);
  } catch (e) {
    ask({ title: `Revoke ${t.name}`, says: [explain(e)], verb: "" });
    return;
  }
  const sessions = made.filter((m) => m.use === "session");
  made = made.filter((m) => m.use !== "session" && m.use !== "link");
  const says: Child[] = ["Programs that use this token are refused at once. This cannot be undone."];
  if (made.length) says.push(`The ${count(made.length, "token")} that it created end too: ${made.slice(0, 10).map((m) => m.name).join(", ")}${made.length > 10 ? ", …" : ""}.`);
  if (sessions.length) says.push(sessions.some((s) => s.current) ? "You signed in with it, so this session ends too." : `${count(sessions.length, "session")} that began with it end too.`);
  ask({
    title: `Revoke ${t.name}`, verb: "Revoke", says,
    run: async () => {
      await send("DELETE", `/v1/tokens/${t.id}?cascade=true`);
      await loadAccount(redraw);
    },
  });
}

function askPassword(): void {
  const d = { current: "", next: "", again: "" };
  const field = (name: keyof typeof d, label: string, kind: string) => textField(name, label, d[name], (v) => {
    d[name] = v;
  }, { type: "password", autocomplete: kind });
  ask({
    title: "Change your password", verb: "Change", keep: "Cancel", says: ["Your other sessions end. The password has at least 12 characters, for example four random words."],
    fields: () => [field("current", "Present password", "current-password"), field("next", "New password", "new-password"), field("again", "New password again", "new-password"),
      d.again !== "" && d.again !== d.next && h("p", { key: "differs", class: "error" }, "The two new passwords differ.")],
    ready: () => d.current !== "" && d.next !== "" && d.next === d.again,
    run: async () => {
      await send("PUT", "/v1/password", { password: d.next, current: d.current });
      await loadAccount(redraw);
      return ["Your password is changed."];
    },
  });
}

const lifetimes: [string, string][] = [["24h", "1 day"], ["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"], ["365d", "1 year"], ["", "Never"]];

function askToken(): void {
  const bounds = world.me!.token as { role?: string; project?: string; organization?: string };
  const roles = ["viewer", "deployer", "operator", "admin"];
  const d = { name: "", role: bounds.role ?? "", project: bounds.project ?? "", expires: "90d" };
  const most = bounds.role ? roles.slice(0, roles.indexOf(bounds.role) + 1) : roles;
  const projects = [...world.projects.values()].sort((a, b) => a.name.localeCompare(b.name)).filter((p) => !bounds.project || p.id === bounds.project);
  ask({
    title: "Create a token", verb: "Create", keep: "Cancel", says: ["The token is shown once. Give it as few rights as the program needs."],
    fields: () => [
      textField("name", "Name", d.name, (v) => { d.name = v; }, { placeholder: "ci", maxlength: 100 }),
      selectField("role", "Rights", d.role, [...(bounds.role ? [] : [["", "All of mine"] as [string, string]]), ...most.map((r): [string, string] => [r, `At most ${r}`])], (v) => { d.role = v; }),
      selectField("project", "Where", d.project, [...(bounds.project ? [] : [["", bounds.organization ? "In the organization of this session" : "Everywhere"] as [string, string]]), ...projects.map((p): [string, string] => [p.id, `Only ${p.organization_name}/${p.name}`])], (v) => { d.project = v; }),
      selectField("expires", "Ends after", d.expires, lifetimes, (v) => { d.expires = v; }),
    ],
    ready: () => d.name.trim() !== "",
    run: async () => {
      const ask = { name: d.name.trim(), role: d.role || undefined, project: d.project || undefined, organization: d.project ? undefined : bounds.organization, expires: d.expires || undefined };
      const made = await send<Token>("POST", "/v1/tokens", ask);
      await loadAccount(redraw);
      return ["Copy the token now. It is not shown again.", secretView(made.secret!), h("span", { class: "quiet" }, made.expires ? `It ${ends(made)}.` : "It does not expire.")];
    },
  });
}

/** secretView shows a secret that can be copied. */
function secretView(secret: string): VNode {
  return h("span", { class: "secret" }, h("code", { class: "shown-once" }, secret), h("button", {
    type: "button",
    onclick: (e: Event) => {
      const b = e.currentTarget as HTMLButtonElement;
      navigator.clipboard?.writeText(secret).then(() => { b.textContent = "Copied"; }, () => { b.textContent = "Select and copy it"; });
    },
  }, "Copy"));
}

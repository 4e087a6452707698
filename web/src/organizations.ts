// Organizations: their members, roles and quotas.

import { get, Role, send } from "./api";
import { Child, h, VNode } from "./dom";
import { Loaded, parseSize, sectionHead, selectField, size, textField, waitOr } from "./fields";
import { ask, explain } from "./sheet";
import { ago, count, world } from "./world";

export interface Organization { id: string; name: string; personal: boolean; role?: "owner" | "member"; base_role: Role; members: number; projects: number; created: string }
interface Member { user: string; user_name: string; role: string }
interface Quota {
  limits: { projects: number | null; instances: number | null; cpu: number | null; memory: number | null; stored_per_project: number | null };
  used: { projects: number; instances: number; cpu: number; memory: number };
  stored: { used: number; per_project: number };
}

let list: Loaded<Organization[]> = { value: null, error: "" };
let one: Loaded<{ org: Organization; members: Member[]; quota: Quota }> & { name: string } = { name: "", value: null, error: "" };
let redraw = () => {};
let go = (_: string) => {};

export const organizationPath = (name: string): string => `/admin/organizations/${encodeURIComponent(name)}`;

export async function loadOrganizations(changed: () => void): Promise<void> {
  redraw = changed;
  try {
    list = { value: (await get<{ organizations: Organization[] }>("/v1/organizations")).organizations, error: "" };
  } catch (e) {
    list = { value: null, error: explain(e) };
  }
  redraw();
}

export async function loadOrganization(name: string, changed: () => void, open: (path: string) => void): Promise<void> {
  [redraw, go] = [changed, open];
  if (one.name !== name) one = { name, value: null, error: "" };
  const at = `/v1/organizations/${encodeURIComponent(name)}`;
  try {
    const [org, members, quota] = await Promise.all([get<Organization>(at), get<{ members: Member[] }>(at + "/members"), get<Quota>(at + "/quota")]);
    if (one.name === name) one = { name, value: { org, members: members.members, quota }, error: "" };
  } catch (e) {
    if (one.name === name) one = { name, value: null, error: explain(e) };
  }
  redraw();
}

const mayCreate = (): boolean => {
  const t = world.me!.token as { role?: string; project?: string; organization?: string };
  return !t.role && !t.project && !t.organization;
};

const baseRoles: [string, string][] = [["none", "No access to projects"], ["viewer", "Viewer of all projects"], ["deployer", "Deployer in all projects"], ["operator", "Operator of all projects"], ["admin", "Admin of all projects"]];
const baseWords = (r: string): string => (r === "none" ? "members have no role in its projects by default" : `members are ${r}s in all its projects`);

export function organizationsView(): VNode {
  return h("section", { key: "organizations", "aria-label": "Organizations" },
    sectionHead("Organizations", "Create an organization…", mayCreate() ? askCreate : null),
    waitOr(list, "organizations", (all) => h("ul", { class: "list organizations" }, all.map((o) => h("li", { key: o.id, "data-organization": o.name },
      h("span", { class: "name" }, h("a", { href: organizationPath(o.name) }, h("b", null, o.name)), o.personal && h("span", { class: "tag" }, "personal")),
      h("span", { class: "quiet" }, standing(o)), h("span", { class: "num" }, count(o.projects, "project")), h("span", { class: "num" }, count(o.members, "member")), h("span", { class: "quiet" }, o.personal ? "" : baseWords(o.base_role)))))));
}

/** standing says what the person is in an organization. Admins of the installation own all of them. */
function standing(o: Organization): string {
  if (o.personal) return o.name === world.me!.organization_name ? "your own" : `of the user ${o.name}`;
  return o.role === "owner" ? "you are an owner" : "you are a member";
}

function askCreate(): void {
  const d = { name: "", base: "viewer" };
  ask({
    title: "Create an organization", verb: "Create", keep: "Cancel", says: ["You become its owner. An organization owns projects, and its members have roles in them."],
    fields: () => [textField("name", "Name", d.name, (v) => { d.name = v.trim(); }), selectField("base", "Members are", d.base, baseRoles, (v) => { d.base = v; })],
    ready: () => d.name !== "",
    run: async () => {
      await send("POST", "/v1/organizations", { name: d.name, base_role: d.base });
      await loadOrganizations(redraw);
    },
  });
}

export function organizationView(): VNode {
  return h("section", { key: "organization", "aria-label": one.name },
    h("p", { class: "crumbs" }, h("a", { href: "/admin" }, "Organizations")),
    waitOr(one, "the organization", ({ org, members, quota }) => {
      const owner = org.role === "owner";
      const reload = () => loadOrganization(org.name, redraw, go);
      return h("div", { class: "organization" },
        h("div", { class: "section-head" }, h("h2", { class: "big" }, org.name), owner && h("div", { class: "buttons" },
          !org.personal && h("button", { key: "rename", onclick: () => askRename(org) }, "Rename…"), !org.personal && h("button", { key: "base", onclick: () => askBase(org, reload) }, "Base role…"), !org.personal && h("button", { key: "delete", onclick: () => askDelete(org) }, "Delete…"))),
        h("p", { class: "quiet" }, `${count(org.projects, "project")}, created ${ago(org.created)}; ${baseWords(org.base_role)}`),
        sectionHead("Members", "Add a member…", owner ? () => askMember(org, reload) : null),
        h("ul", { class: "list members" }, members.map((m) => h("li", { key: m.user, "data-member": m.user_name },
          h("span", { class: "name" }, h("b", null, m.user_name), m.user === world.me!.id && h("span", { class: "tag" }, "you")),
          owner ? roleSelect(org, m, reload) : h("span", null, m.role),
          h("span", { class: "acts" }, (owner || m.user === world.me!.id) && !org.personal && h("button", { class: "plain", onclick: () => askRemove(org, m, reload) }, m.user === world.me!.id ? "Leave…" : "Remove…"))))),
        sectionHead("Quota", "Change…", world.me!.admin && mayCreate() ? () => askQuota(org, quota, reload) : null),
        quotaView(quota));
    }));
}

/** roleSelect asks before it changes a role. */
function roleSelect(org: Organization, m: Member, reload: () => Promise<void>): VNode {
  return h("select", {
    "aria-label": `Role of ${m.user_name}`, value: m.role,
    onchange: (e: Event) => {
      const role = (e.target as HTMLSelectElement).value;
      (e.target as HTMLSelectElement).value = m.role;
      ask({
        title: `Make ${m.user_name} ${role === "owner" ? "an owner" : "a member"} of ${org.name}`, verb: "Change the role", says: [roleWords(role, org)],
        run: async () => {
          await send("PUT", `/v1/organizations/${org.id}/members/${m.user}`, { role });
          await reload();
        },
      });
    },
  }, [["member", "Member"], ["owner", "Owner"]].map(([v, w]) => h("option", { key: v, value: v }, w)));
}

const roleWords = (role: string, org: Organization): string =>
  role === "owner" ? "Owners are admins of all its projects, manage its members and read its audit log." : `Members see the organization and create projects in it; ${baseWords(org.base_role)}.`;

function askMember(org: Organization, reload: () => Promise<void>): void {
  const d = { user: "", role: "member" };
  ask({
    title: `Add a member to ${org.name}`, verb: "Add", keep: "Cancel", says: ["An admin of the installation creates users. Add one by name."],
    fields: () => [textField("user", "User", d.user, (v) => { d.user = v.trim(); }), selectField("role", "Role", d.role, [["member", "Member"], ["owner", "Owner"]], (v) => { d.role = v; }), h("p", { key: "words", class: "hint" }, roleWords(d.role, org))],
    ready: () => d.user !== "",
    run: async () => {
      await send("PUT", `/v1/organizations/${org.id}/members/${encodeURIComponent(d.user)}`, { role: d.role });
      await reload();
    },
  });
}

function askRemove(org: Organization, m: Member, reload: () => Promise<void>): void {
  const me = m.user === world.me!.id;
  ask({
    title: me ? `Leave ${org.name}` : `Remove ${m.user_name} from ${org.name}`, verb: me ? "Leave" : "Remove",
    says: [`${me ? "You lose" : m.user_name + " loses"} the roles that came from the organization. Roles given in single projects stay.`],
    run: async () => {
      await send("DELETE", `/v1/organizations/${org.id}/members/${m.user}`);
      if (me && !world.me!.admin) go("/admin");
      else await reload();
    },
  });
}

function askRename(org: Organization): void {
  let name = org.name;
  ask({
    title: `Rename ${org.name}`, verb: "Rename", keep: "Cancel", says: ["Addresses and DNS names of its projects change with it. Scripts that use the old name fail. Nothing restarts."],
    fields: () => [textField("name", "New name", name, (v) => { name = v.trim(); })], ready: () => name !== "" && name !== org.name,
    run: async () => {
      await send("PUT", `/v1/organizations/${org.id}`, { name });
      await world.load();
      go(organizationPath(name));
    },
  });
}

function askBase(org: Organization, reload: () => Promise<void>): void {
  let base: string = org.base_role;
  ask({
    title: `Base role of ${org.name}`, verb: "Change", keep: "Cancel", says: ["Every member has at least this role in every project of the organization, at once."],
    fields: () => [selectField("base", "Members are", base, baseRoles, (v) => { base = v; })], ready: () => base !== org.base_role,
    run: async () => {
      await send("PUT", `/v1/organizations/${org.id}`, { base_role: base });
      await reload();
    },
  });
}

function askDelete(org: Organization): void {
  let typed = "";
  if (org.projects > 0) {
    ask({ title: `Delete ${org.name}`, says: [`It still has ${count(org.projects, "project")}. Move or delete them first.`], verb: "" });
    return;
  }
  ask({
    title: `Delete ${org.name}`, verb: "Delete", says: ["Its members lose it, and its name is free. This cannot be undone."],
    fields: () => [textField("typed", `Type ${org.name} to confirm`, typed, (v) => { typed = v.trim(); })], ready: () => typed === org.name,
    run: async () => {
      await send("DELETE", `/v1/organizations/${org.id}`);
      go("/admin");
    },
  });
}

function quotaView(q: Quota): VNode {
  const line = (name: string, used: number, limit: number | null, say: (n: number) => Child): VNode => h("li", { key: name },
    h("span", { class: "name" }, name),
    h("span", { class: "num" }, say(used), limit === null ? "" : " of ", limit === null ? "" : say(limit)),
    limit !== null ? h("span", { class: "track", role: "img", "aria-label": `${name}: ${used} of ${limit}` }, h("i", { style: { width: `${Math.min(100, limit ? (used / limit) * 100 : 100)}%` } })) : h("span", { class: "quiet" }, "no limit"));
  return h("ul", { class: "list quota" }, line("Projects", q.used.projects, q.limits.projects, String), line("Instances", q.used.instances, q.limits.instances, String), line("CPU cores", q.used.cpu, q.limits.cpu, String), line("Memory", q.used.memory, q.limits.memory, size),
    h("li", { key: "stored" }, h("span", { class: "name" }, "Versions and values"), h("span", { class: "num" }, size(q.stored.used)), h("span", { class: "quiet" }, `at most ${size(q.stored.per_project)} per project`)));
}

function askQuota(org: Organization, q: Quota, reload: () => Promise<void>): void {
  const text = (n: number | null, say: (n: number) => string = String): string => (n === null ? "" : say(n));
  const d = { projects: text(q.limits.projects), instances: text(q.limits.instances), cpu: text(q.limits.cpu), memory: text(q.limits.memory, size) };
  const number = (v: string): number | null | undefined => (v === "" ? null : /^\d+(\.\d+)?$/.test(v) ? Number(v) : undefined);
  const bytes = (v: string): number | null | undefined => (v === "" ? null : parseSize(v) ?? undefined);
  const field = (name: keyof typeof d, label: string) => textField(name, label, d[name], (v) => { d[name] = v.trim(); }, { placeholder: "no limit" });
  const limits = () => ({ projects: number(d.projects), instances: number(d.instances), cpu: number(d.cpu), memory: bytes(d.memory) });
  ask({
    title: `Quota of ${org.name}`, verb: "Set", keep: "Cancel",
    says: ["Changes that would exceed a limit are refused. Nothing that runs is stopped. With a limit of CPU or memory, every service needs a size."],
    fields: () => [field("projects", "Projects"), field("instances", "Instances"), field("cpu", "CPU cores"), field("memory", "Memory, such as 64 GiB")],
    ready: () => Object.values(limits()).every((v) => v !== undefined),
    run: async () => {
      await send("PUT", `/v1/organizations/${org.id}/quota`, limits());
      await reload();
    },
  });
}

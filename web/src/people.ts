// The users of the installation, and the people of a project with their roles.

import { get, Project, send } from "./api";
import { h, VNode } from "./dom";
import { checkField, Loaded, sectionHead, selectField, textField, waitOr } from "./fields";
import { ask, explain } from "./sheet";
import { ago, may, world } from "./world";

interface User { id: string; name: string; email?: string; admin: boolean; disabled: boolean; created: string }
interface Member { user: string; user_name: string; role: string; via?: string }

let users: Loaded<User[]> = { value: null, error: "" };
let members: Loaded<Member[]> & { project: string } = { project: "", value: null, error: "" };
let redraw = () => {};

export async function loadUsers(changed: () => void): Promise<void> {
  redraw = changed;
  try {
    users = { value: (await get<{ users: User[] }>("/v1/users")).users, error: "" };
  } catch (e) {
    users = { value: null, error: explain(e) };
  }
  redraw();
}

const reload = (): Promise<void> => loadUsers(redraw);

export function usersView(): VNode {
  return h("section", { key: "users", "aria-label": "People" },
    sectionHead("People", "Create a user…", askUser),
    waitOr(users, "people", (all) => h("ul", { class: "list users" }, all.map((u) => {
      const me = u.id === world.me!.id;
      return h("li", { key: u.id, "data-user": u.name },
        h("span", { class: "name" }, h("b", null, u.name), u.admin && h("span", { class: "tag" }, "admin"), u.disabled && h("span", { class: "tag" }, "disabled"), me && h("span", { class: "tag" }, "you")),
        h("span", { class: "quiet" }, u.email ?? ""), h("span", { class: "quiet" }, `created ${ago(u.created)}`),
        h("span", { class: "acts" }, !me && [
          h("button", { key: "admin", class: "plain", onclick: () => askAdmin(u) }, u.admin ? "No longer admin…" : "Make admin…"),
          h("button", { key: "disable", class: "plain", onclick: () => askDisable(u) }, u.disabled ? "Enable…" : "Disable…"),
          h("button", { key: "delete", class: "plain", onclick: () => askDelete(u) }, "Delete…"),
        ]));
    }))));
}

function askUser(): void {
  const d = { name: "", email: "", admin: false };
  ask({
    title: "Create a user", verb: "Create", keep: "Cancel", says: ["The user gets a personal organization of the same name."],
    fields: () => [textField("name", "Name", d.name, (v) => { d.name = v.trim(); }), textField("email", "Email (optional)", d.email, (v) => { d.email = v.trim(); }), checkField("admin", "Admin of the installation: may do everything", d.admin, (v) => { d.admin = v; })],
    ready: () => d.name !== "",
    run: async () => {
      await send("POST", "/v1/users", { name: d.name, email: d.email || undefined, admin: d.admin });
      await reload();
      return [`${d.name} is created. Set the first password with the command line: `, h("code", null, `mariposa user password ${d.name}`)];
    },
  });
}

const change = (u: User, body: object) => async () => {
  await send("PUT", `/v1/users/${u.id}?cascade=true`, body);
  await reload();
};

function askAdmin(u: User): void {
  ask(u.admin
    ? { title: `${u.name} is no longer admin`, verb: "Take the rights away", says: [`${u.name} loses the rights to manage the installation at once. Tokens that ${u.name} created for others and for nodes end.`], run: change(u, { admin: false }) }
    : { title: `Make ${u.name} an admin`, verb: "Make admin", says: [`${u.name} may then do everything: all projects, nodes, users and settings.`], run: change(u, { admin: true }) });
}

function askDisable(u: User): void {
  ask(u.disabled
    ? { title: `Enable ${u.name}`, verb: "Enable", says: ["The user can sign in again, and their tokens work again."], run: change(u, { disabled: false }) }
    : { title: `Disable ${u.name}`, verb: "Disable", says: [`${u.name} is signed out everywhere, and their tokens are refused. Tokens that ${u.name} created for others and for nodes end. Projects and roles stay.`], run: change(u, { disabled: true }) });
}

function askDelete(u: User): void {
  let typed = "";
  ask({
    title: `Delete ${u.name}`, verb: "Delete", says: [`${u.name} leaves all organizations and projects, and their tokens end. The personal organization must have no projects. This cannot be undone.`],
    fields: () => [textField("typed", `Type ${u.name} to confirm`, typed, (v) => { typed = v.trim(); })], ready: () => typed === u.name,
    run: async () => {
      await send("DELETE", `/v1/users/${u.id}?cascade=true`);
      await reload();
    },
  });
}

export async function loadProjectPeople(project: string, changed: () => void): Promise<void> {
  redraw = changed;
  if (members.project !== project) members = { project, value: null, error: "" };
  try {
    const got = (await get<{ members: Member[] }>(`/v1/projects/${project}/users`)).members;
    if (members.project === project) members = { project, value: got, error: "" };
  } catch (e) {
    members = { project, value: null, error: explain(e) };
  }
  redraw();
}

const roles: [string, string][] = [["viewer", "Viewer"], ["deployer", "Deployer"], ["operator", "Operator"], ["admin", "Admin"]];
const rights: Record<string, string> = {
  viewer: "Viewers see the project, its state and its logs.", deployer: "Deployers also change the manifest and values.", operator: "Operators also start, stop and scale, run commands inside instances, and read secrets.", admin: "Admins also manage people, and rename, move and delete the project.",
};

export function projectPeopleView(p: Project): VNode {
  const mayManage = may(p.id, "admin") && p.goal !== "deleted";
  return h("div", { class: "people" },
    mayManage && h("div", { key: "head", class: "section-head" }, h("p", { class: "quiet" }, "Roles in this project alone, and those that come from the organization."), h("button", { onclick: () => askRole(p, "", "viewer") }, "Add a person…")),
    waitOr(members, "people", (all) => h("ul", { class: "list members" }, all.map((m) => h("li", { key: m.user, "data-member": m.user_name },
      h("span", { class: "name" }, h("b", null, m.user_name), m.user === world.me!.id && h("span", { class: "tag" }, "you")),
      h("span", null, m.role, m.via && h("span", { class: "quiet" }, `, as ${m.via}`)),
      h("span", { class: "acts" }, mayManage && h("button", { class: "plain", onclick: () => askRole(p, m.user_name, m.role) }, "Change…"), mayManage && !m.via && h("button", { class: "plain", onclick: () => askLeave(p, m) }, "Remove…")))))));
}

function askRole(p: Project, user: string, role: string): void {
  const d = { user, role };
  ask({
    title: user ? `Role of ${user} in ${p.name}` : `Add a person to ${p.name}`, verb: user ? "Change" : "Add", keep: "Cancel", says: [],
    fields: () => [!user && textField("user", "User", d.user, (v) => { d.user = v.trim(); }), selectField("role", "Role", d.role, roles, (v) => { d.role = v; }), h("p", { key: "rights", class: "hint" }, rights[d.role])],
    ready: () => d.user !== "" && (!user || d.role !== role),
    run: async () => {
      await send("PUT", `/v1/projects/${p.id}/users/${encodeURIComponent(d.user)}`, { role: d.role });
      await loadProjectPeople(p.id, redraw);
    },
  });
}

function askLeave(p: Project, m: Member): void {
  ask({
    title: `Remove ${m.user_name} from ${p.name}`, verb: "Remove", says: [`${m.user_name} loses the role in this project. A role that comes from the organization stays.`],
    run: async () => {
      await send("DELETE", `/v1/projects/${p.id}/users/${m.user}`);
      await loadProjectPeople(p.id, redraw);
    },
  });
}

// What admins of a project do rarely: copy it, rename it, move it, delete it. Each says what will
// happen first.

import { get, Project, send } from "./api";
import { Child, h, VNode } from "./dom";
import { checkField, selectField, textField } from "./fields";
import { ask, explain } from "./sheet";
import { pathOf } from "./views";
import { count, may, mayCreate, world } from "./world";

interface Organization { id: string; name: string; role?: string }

async function organizations(): Promise<[string, string][]> {
  const all = (await get<{ organizations: Organization[] }>("/v1/organizations")).organizations;
  return all.filter((o) => o.role).map((o) => [o.id, o.name]);
}

/** failed says why a sheet cannot be opened. */
const failed = (title: string) => (e: unknown) => ask({ title, says: [explain(e)], verb: "" });

/** moreMenu is the menu of what the person may do with a project besides the usual. */
export function moreMenu(p: Project, go: (path: string) => void): VNode | null {
  const items: [string, () => void][] = [];
  if (may(p.id, "deployer") && mayCreate()) items.push(["Copy…", () => void askCopy(p, go).catch(failed(`Copy ${p.name}`))]);
  if (may(p.id, "admin")) {
    items.push(["Rename…", () => askRename(p, go)]);
    if (mayCreate()) items.push(["Move…", () => void askMove(p, go).catch(failed(`Move ${p.name}`))]);
    items.push(["Delete…", () => void askDelete(p, go).catch(failed(`Delete ${p.name}`))]);
  }
  if (items.length === 0) return null;
  return h("details", { key: "more", class: "more-menu" }, h("summary", { class: "button" }, "More"), h("div", { class: "menu" }, items.map(([name, run]) => h("button", {
    key: name, class: "plain",
    onclick: (e: Event) => {
      (e.currentTarget as HTMLElement).closest("details")!.open = false;
      run();
    },
  }, name))));
}

/** arrive opens a project once the page knows it. */
async function arrive(id: string, go: (path: string) => void): Promise<void> {
  await world.loadProject(id);
  const p = world.projects.get(id);
  if (p) go(pathOf(p));
}

interface Key { key: string; set: boolean; secret: boolean; required: boolean }

async function askCopy(p: Project, go: (path: string) => void): Promise<void> {
  const [orgs, meta] = await Promise.all([organizations(), get<{ keys: Key[] }>(`/v1/projects/${p.id}/metadata`)]);
  const keys = meta.keys.filter((k) => k.set && (!k.secret || may(p.id, "operator")));
  const d = { name: `${p.name}-copy`, organization: p.organization, keys: new Set(keys.filter((k) => !k.secret).map((k) => k.key)) };
  ask({
    title: `Copy ${p.name}`, verb: "Copy", keep: "Cancel",
    says: [`A new project starts from the newest manifest, with ${count(p.services.length, "service")} and the scales of the manifest. Volumes and their data are not copied. ${p.name} stays as it is.`],
    fields: () => [
      textField("name", "Name of the copy", d.name, (v) => { d.name = v.trim(); }),
      orgs.length > 1 && selectField("organization", "Organization", d.organization, orgs, (v) => { d.organization = v; }),
      keys.length > 0 && h("p", { key: "which", class: "hint" }, "Values to copy. The others are not set in the copy."),
      h("div", { key: "keys", class: "checks" }, keys.map((k) => checkField("copy-" + k.key, k.key + (k.secret ? ", secret" : ""), d.keys.has(k.key), (on) => {
        if (on) d.keys.add(k.key);
        else d.keys.delete(k.key);
      }))),
    ],
    ready: () => d.name !== "",
    run: async () => {
      const made = await send<{ id: string }>("POST", `/v1/projects/${p.id}/copy`, { name: d.name, organization: d.organization, metadata: [...d.keys] });
      await arrive(made.id, go);
    },
  });
}

function askRename(p: Project, go: (path: string) => void): void {
  let name = p.name;
  ask({
    title: `Rename ${p.name}`, verb: "Rename", keep: "Cancel",
    says: ["The address of this page and the DNS names of its services change. Scripts that use the old name fail. Nothing restarts: instances see the new name when they are replaced."],
    fields: () => [textField("name", "New name", name, (v) => { name = v.trim(); })],
    ready: () => name !== "" && name !== p.name,
    run: async () => {
      await send("PUT", `/v1/projects/${p.id}`, { name });
      await arrive(p.id, go);
    },
  });
}

async function askMove(p: Project, go: (path: string) => void): Promise<void> {
  const orgs = (await organizations()).filter(([id]) => id !== p.organization);
  if (orgs.length === 0) {
    ask({ title: `Move ${p.name}`, says: ["You are in no other organization. Create one, or ask to become a member of one."], verb: "" });
    return;
  }
  let to = orgs[0][0];
  ask({
    title: `Move ${p.name}`, verb: "Move", keep: "Cancel",
    says: [`The project moves with its versions, values and secrets. Instances keep running. Members of ${p.organization_name} lose the roles that they have through it; owners of the other organization become admins. It then counts for the other quota, and its DNS names change.`],
    fields: () => [selectField("organization", "To the organization", to, orgs, (v) => { to = v; })],
    run: async () => {
      await send("POST", `/v1/projects/${p.id}/move`, { organization: to });
      await arrive(p.id, go);
    },
  });
}

async function askDelete(p: Project, go: (path: string) => void): Promise<void> {
  const volumes = (await get<{ volumes: { project?: string }[] }>(`/v1/volumes?project=${p.id}`)).volumes.length;
  const running = p.services.reduce((n, s) => n + s.running + s.starting, 0);
  const d = { typed: "", volumes: false };
  const says: Child[] = [`${running ? `${count(running, "instance")} will stop, dependents first. ` : ""}The versions and values are deleted. This cannot be undone. The name is free at once.`];
  ask({
    title: `Delete ${p.name}`, verb: "Delete", says,
    fields: () => [
      volumes > 0 && checkField("volumes", `Also delete its ${count(volumes, "volume")} with their data. Otherwise ${p.organization_name} keeps them.`, d.volumes, (v) => { d.volumes = v; }),
      textField("typed", `Type ${p.name} to confirm`, d.typed, (v) => { d.typed = v.trim(); }),
    ],
    ready: () => d.typed === p.name,
    run: async () => {
      await send("DELETE", `/v1/projects/${p.id}?force=true${d.volumes ? "&volumes=true" : ""}`);
      go("/");
    },
  });
}

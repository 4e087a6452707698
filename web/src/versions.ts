// The versions of a project: what changed with each, and the way back.

import { get, Project, send } from "./api";
import { h, VNode } from "./dom";
import { ask, explain } from "./sheet";
import { ago, may } from "./world";

interface Version { version: string; number: number; created: string; author: string; message: string; tags: string[]; services_changed: string[]; metadata_changed: string[]; completed: boolean; cause: string }
interface Diff { services: { service: string; change: string; fields: { field: string; before: string; after: string }[] }[]; metadata: { key: string; change: string; before: string; after: string }[] }

const causes: Record<string, string> = { manifest: "Another manifest", metadata: "Other values", revert: "Revert", refresh: "Images looked up again" };

let shown: { project: string; versions: Version[] | null; marker: string; error: string } = { project: "", versions: null, marker: "", error: "" };
const diffs = new Map<number, Diff>();

export async function loadVersions(project: string, redraw: () => void): Promise<void> {
  if (shown.project !== project) {
    shown = { project, versions: null, marker: "", error: "" };
    diffs.clear();
  }
  try {
    const page = await get<{ versions: Version[]; marker?: string }>(`/v1/projects/${project}/versions?limit=50`);
    if (shown.project === project) shown = { project, versions: page.versions, marker: page.marker ?? "", error: "" };
  } catch (e) {
    shown.error = explain(e);
  }
  redraw();
}

async function more(redraw: () => void): Promise<void> {
  const page = await get<{ versions: Version[]; marker?: string }>(`/v1/projects/${shown.project}/versions?limit=50&marker=${encodeURIComponent(shown.marker)}`);
  shown = { ...shown, versions: [...shown.versions!, ...page.versions], marker: page.marker ?? "" };
  redraw();
}

async function toggle(p: Project, to: Version, from: Version, redraw: () => void): Promise<void> {
  if (!diffs.delete(to.number)) diffs.set(to.number, await get<Diff>(`/v1/projects/${p.id}/diff?from=${from.number}&to=${to.number}`));
  redraw();
}

export function versionsView(p: Project, redraw: () => void): VNode {
  if (shown.error) return h("p", { class: "error", role: "alert" }, shown.error);
  if (!shown.versions) return h("p", { class: "quiet" }, "Loading versions…");
  return h("div", null,
    h("ol", { class: "versions" }, shown.versions.map((v, i) => {
      const before = shown.versions![i + 1];
      const diff = diffs.get(v.number);
      const current = v.version === p.version;
      return h("li", { key: v.number, "data-version": v.number },
        h("span", { class: "name" }, h("b", null, `Version ${v.number}`), current && h("span", { class: "tag" }, "in force"), v.tags.filter((t) => !["latest", "current", "completed"].includes(t)).map((t) => h("span", { key: t, class: "tag" }, t))),
        h("span", null, v.message || causes[v.cause] || v.cause, h("span", { class: "quiet" }, [...v.services_changed, ...v.metadata_changed].length ? ` · ${[...v.services_changed, ...v.metadata_changed].join(", ")}` : "", v.completed ? "" : " · never rolled out completely")),
        h("span", { class: "quiet" }, `${v.author}, ${ago(v.created)}`),
        h("span", { class: "acts" },
          before && h("button", { class: "plain", "aria-expanded": diff ? "true" : "false", onclick: () => void toggle(p, v, before, redraw) }, diff ? "Hide changes" : "Changes"),
          !current && may(p.id, "deployer") && h("button", { class: "plain", onclick: () => askRevert(p, v) }, "Revert to this…")),
        diff && diffView(diff));
    })),
    shown.marker && h("button", { onclick: () => void more(redraw) }, "Older versions"));
}

const words: Record<string, string> = { create: "was added", delete: "was removed", replace: "was replaced", update: "was updated in place", scale: "was scaled" };

function diffView(d: Diff): VNode {
  if (d.services.length + d.metadata.length === 0) return h("p", { class: "quiet diff" }, "Nothing that services use has changed.");
  return h("ul", { class: "changes diff" },
    d.services.map((s) => h("li", { key: "s" + s.service }, h("b", null, s.service), h("span", { class: "quiet" }, ` ${words[s.change] ?? s.change}`),
      h("ul", null, s.fields.map((f) => h("li", { key: f.field, class: "field" }, h("code", null, f.field), " ", f.before && h("del", null, f.before), f.before && f.after && " ", f.after && h("ins", null, f.after)))))),
    d.metadata.map((m) => h("li", { key: "m" + m.key, class: "field" }, h("code", null, m.key), h("span", { class: "quiet" }, ` ${m.change} `), m.before && h("del", null, m.before), " ", m.after && h("ins", null, m.after))));
}

function askRevert(p: Project, v: Version): void {
  ask({
    title: `Revert ${p.name} to version ${v.number}`, verb: "Revert",
    says: [
      `Mariposa rolls out the manifest and the values of version ${v.number} as a new version. Instances that differ from it are replaced, as gently as the manifest says. Scales stay as they are.`,
    ],
    run: async () => void (await send("PUT", `/v1/projects/${p.id}/state`, { action: "revert", version: String(v.number) })),
  });
}

// The shell of the page: what is shown at which address, and the keys.

import { Failure, Project, send } from "./api";
import { refreshBalancers } from "./balancers";
import { Child, h, mount, VNode } from "./dom";
import { accountView, loadAccount } from "./account";
import { adminView, loadAdmin, mayAdminister } from "./admin";
import { nodesView } from "./nodes";
import { matches, overviewView, summary, view, visible } from "./overview";
import { closeCharts, openCharts } from "./charts";
import { closeEditor, editorView, openEditor } from "./editor";
import { loadGraph } from "./graph";
import { closeLogs, openLogs } from "./logs";
import { hideInstance, refreshInstance, showInstance, shownInstance } from "./panel";
import { projectView, Tab } from "./project";
import { ask, isAsking, onSheet, sheetView } from "./sheet";
import { closeShell, shellView } from "./shell";
import { hasReturned, linkInAddress, mayBeSignedIn, onOtherSignIn, rememberSignIn, signInBy, signInView } from "./signin";
import { loadProjectPeople } from "./people";
import { closeValues, loadValues } from "./values";
import { addInstances, addToTimeline, closeTimeline, loadTimeline } from "./timeline";
import { eventList, pathOf, refreshSteps, taskList } from "./views";
import { loadVersions } from "./versions";
import { followPerson, may, world } from "./world";

const show = mount(document.getElementById("app")!);
let scheduled = false;
let failure = "";
let searching = false;
let starting = true;

/** redraw shows the current state in the next frame. */
function redraw(): void {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    show(pageView());
    if (sought) seek();
  });
}

/** sought is what a link of a reason leads to, until it is shown. */
let sought = "";

function seek(): void {
  const at = document.querySelector<HTMLElement>(sought);
  if (!at) return;
  sought = "";
  at.scrollIntoView({ block: "center" });
}

function currentProject(): Project | undefined {
  const [, at, organization, name] = location.pathname.split("/").map(decodeURIComponent);
  if (at !== "projects" || !name) return undefined;
  return [...world.projects.values()].find((p) => p.organization_name === organization && p.name === name);
}

const isAdminPage = (): boolean => location.pathname === "/admin" || location.pathname.startsWith("/admin/");

const tabOf = (): Tab => (location.pathname.split("/")[4] ?? "") as Tab;

function go(path: string): void {
  history.pushState(null, "", path);
  sought = "";
  arrive();
  window.scrollTo(0, 0);
}

/** arrive loads what the address needs. */
function arrive(): void {
  hideInstance();
  const p = currentProject();
  world.show(p?.id ?? "").catch(() => {});
  world.followAll(location.pathname === "/events").catch(() => {});
  if (location.pathname === "/projects/new") openEditor(null, redraw);
  else if (p && tabOf() === "change" && may(p.id, "deployer")) openEditor(p, redraw);
  else closeEditor();
  if (p && tabOf() === "charts") openCharts(p.id, redraw);
  else closeCharts();
  if (p && tabOf() === "logs") openLogs(p.id, location.pathname.split("/")[5] ?? p.services[0]?.name ?? "", redraw);
  else closeLogs();
  if (p && tabOf() === "graph") void loadGraph(p.id, redraw);
  if (p && tabOf() === "timeline") void loadTimeline(p.id, redraw);
  else closeTimeline();
  if (p && tabOf() === "versions") void loadVersions(p.id, redraw);
  if (p && tabOf() === "values") void loadValues(p.id, redraw);
  else closeValues();
  if (p && tabOf() === "people") void loadProjectPeople(p.id, redraw);
  if (location.pathname === "/account") void loadAccount(redraw);
  if (isAdminPage()) loadAdmin(redraw, go);
  if (location.pathname === "/nodes" && !world.nodes) world.loadNodes().catch(() => {});
  document.title = p ? `${p.name} · Mariposa` : "Mariposa";
  redraw();
}

function pageView(): VNode {
  if (starting) return h("div", { key: "starting" });
  if (!world.me) {
    closeShell();
    return h("div", { key: "out", class: "page" }, signInView(begin, redraw));
  }
  return h("div", { key: "in", class: "page" }, topView(),
    world.problem && h("p", { key: "problem", class: "problem", role: "alert" }, world.problem),
    contentView(), shellView(), sheetView());
}

function contentView(): VNode {
  if (failure) return h("main", { key: "failure" }, h("h1", null, "This did not load"), h("p", { class: "error", role: "alert" }, failure), h("button", { onclick: () => void begin() }, "Try again"));
  if (!world.loaded) return h("main", { key: "loading" }, h("p", { class: "quiet" }, "Loading projects…"));
  switch (location.pathname) {
    case "/": case "/projects": return overviewView();
    case "/queue": {
      const tasks = [...world.tasks.values()].sort((a, b) => b.created.localeCompare(a.created));
      return h("main", { key: "queue" }, h("h1", null, "Queue"), tasks.length ? taskList(tasks, true, redraw) : h("p", { class: "quiet" }, "No task is open. Changes appear here until they are done."));
    }
    case "/projects/new": return h("main", { key: "new" }, h("h1", null, "New project"), editorView(go));
    case "/nodes": return nodesView(redraw);
    case "/events": return h("main", { key: "events" }, h("h1", null, "Events"), eventList(world.events, true));
  }
  if (location.pathname === "/account") return accountView();
  if (isAdminPage()) return adminView();
  const p = currentProject();
  if (p) {
    if (world.open !== p.id) arrive(); // the project was created after the address was opened
    if (["", "change", "charts", "graph", "logs", "people", "timeline", "values", "versions"].includes(tabOf())) return projectView(p, tabOf(), redraw, go);
  }
  return h("main", { key: "lost" }, h("h1", null, "Not found"), h("p", null, "There is no such project, or you cannot see it. ", h("a", { href: "/" }, "All projects")));
}

function topView(): VNode {
  const link = (path: string, name: string) => h("a", { href: path, "aria-current": location.pathname === path || (path === "/" && location.pathname.startsWith("/projects")) || (path === "/admin" && isAdminPage()) ? "page" : null }, name);
  return h("header", { key: "top", class: "top" },
    h("a", { class: "brand", href: "/" }, "Mariposa"),
    h("nav", { "aria-label": "Main" }, link("/", "Projects"), link("/queue", "Queue"), world.me!.admin && link("/nodes", "Nodes"), link("/events", "Events"), mayAdminister() && link("/admin", "Admin")),
    h("div", { class: "search" },
      h("input", {
        id: "search", type: "search", placeholder: "Search projects and services", "aria-label": "Search", autocomplete: "off", spellcheck: "false", value: view.filter,
        oninput: (e: Event) => {
          view.filter = (e.target as HTMLInputElement).value;
          view.at = view.filter ? 0 : -1;
          redraw();
        },
        onfocus: () => {
          searching = true;
          redraw();
        },
        onblur: () => setTimeout(() => {
          searching = false;
          redraw();
        }, 150),
        onkeydown: searchKey,
      }),
      h("kbd", { "aria-hidden": "true" }, "/"),
      searching && view.filter && location.pathname !== "/" && h("ul", { class: "menu" }, resultViews())),
    summary(),
    h("details", { class: "you" }, h("summary", null, world.me!.name), h("div", { class: "menu" },
      world.me!.admin && h("p", { class: "quiet" }, "Admin of the installation"),
      h("a", { key: "account", href: "/account" }, "Your account"),
      h("button", { class: "plain", onclick: () => askKeys() }, "Keyboard shortcuts"),
      h("a", { href: "/docs", "data-plain": "" }, "HTTP API"),
      h("a", { href: "/assets/licenses.txt", "data-plain": "" }, "Licenses"),
      h("button", { class: "plain", onclick: () => void signOut() }, "Sign out"))));
}

interface Found { key: string; name: string; where: string; open: () => void }

/** found returns what the search text finds: projects, their services, nodes, and instances of the open project. */
function found(): Found[] {
  const want = view.filter.trim().toLowerCase();
  if (!want) return [];
  const has = (name: string) => name.toLowerCase().includes(want);
  const projects = matches(want);
  const all: Found[] = projects.filter((p) => has(p.name) || has(p.organization_name)).map((p) => ({ key: p.id, name: p.name, where: `project of ${p.organization_name}`, open: () => go(pathOf(p)) }));
  for (const p of projects) for (const s of p.services) if (has(s.name)) all.push({ key: p.id + s.name, name: s.name, where: `service of ${p.name}`, open: () => go(pathOf(p)) });
  for (const n of world.nodes ?? []) if (has(n.name)) all.push({ key: n.id, name: n.name, where: "node", open: () => go("/nodes") });
  for (const i of world.instances.values()) {
    if (all.length >= maxFound) break;
    const p = world.projects.get(world.open);
    if (p && has(i.name)) all.push({ key: i.id, name: i.name, where: `instance of ${p.name}`, open: () => {
      go(pathOf(p));
      void showInstance(i.id, redraw);
    } });
  }
  return all.slice(0, maxFound);
}

const maxFound = 8;

function endSearch(): void {
  view.filter = "";
  view.at = -1;
  document.getElementById("search")?.blur();
}

function resultViews(): Child[] {
  const all = found();
  if (all.length === 0) return [h("li", { key: "none", class: "quiet" }, "Nothing found")];
  return all.map((f, i) => h("li", { key: f.key }, h("button", {
    class: "plain" + (i === view.at ? " at" : ""), onclick: () => {
      endSearch();
      f.open();
    },
  }, f.name, h("span", { class: "quiet" }, ` ${f.where}`))));
}

function searchKey(e: KeyboardEvent): void {
  const onOverview = location.pathname === "/";
  const all = onOverview ? visible().map((p): Found => ({ key: p.id, name: p.name, where: "", open: () => go(pathOf(p)) })) : found();
  if (e.key === "ArrowDown" || e.key === "ArrowUp") {
    view.at = Math.max(0, Math.min(all.length - 1, view.at + (e.key === "ArrowDown" ? 1 : -1)));
    e.preventDefault();
  } else if (e.key === "Enter" && all[Math.max(0, view.at)]) {
    const one = all[Math.max(0, view.at)];
    endSearch();
    one.open();
  } else if (e.key === "Escape") {
    endSearch();
  } else {
    return;
  }
  e.stopPropagation();
  redraw();
}

async function signOut(): Promise<void> {
  await send("DELETE", "/v1/session").catch(() => {});
  rememberSignIn("");
  world.signOut();
  history.replaceState(null, "", "/");
}

function askKeys(): void {
  const keys = [["/", "search"], ["j, k", "next and previous project"], ["Enter", "open"], ["g p", "projects"], ["g q", "queue"], ["g n", "nodes"], ["g e", "events"], ["g a", "admin"], ["Arrows", "move between instances"], ["Esc", "close"], ["?", "this list"]];
  ask({ title: "Keyboard shortcuts", verb: "", says: [h("span", { class: "keys" }, keys.flatMap(([k, what]) => [h("kbd", { key: k }, k), h("span", { key: what }, what)]))] });
}

let prefix = 0;

function onKey(e: KeyboardEvent): void {
  const target = e.target as HTMLElement;
  if (target.closest?.(".shell")) return; // all keys go to the command
  if (e.key === "Escape" && !isAsking() && shownInstance()) {
    hideInstance();
    redraw();
    return;
  }
  if (e.ctrlKey || e.metaKey || e.altKey || !world.me || isAsking() || isTyping(e)) return;
  const places: Record<string, string> = { p: "/", q: "/queue", n: "/nodes", e: "/events", a: "/admin" };
  if (e.timeStamp - prefix < 1500 && places[e.key]) {
    prefix = 0;
    go(places[e.key]);
  } else if (e.key === "g") {
    prefix = e.timeStamp;
    return;
  } else if (e.key === "/") {
    document.getElementById("search")?.focus();
  } else if (e.key === "?") {
    askKeys();
  } else if ((e.key === "j" || e.key === "k") && location.pathname === "/") {
    view.at = Math.max(0, Math.min(visible().length - 1, view.at + (e.key === "j" ? 1 : -1)));
    redraw();
    requestAnimationFrame(() => document.querySelector(".row.at")?.scrollIntoView({ block: "nearest" }));
  } else if (e.key === "Enter" && location.pathname === "/" && view.at >= 0 && target === document.body && visible()[view.at]) {
    go(pathOf(visible()[view.at]));
  } else {
    return;
  }
  e.preventDefault();
}

/** isTyping reports whether a key goes to a field. The editor of manifests is in a shadow root. */
function isTyping(e: KeyboardEvent): boolean {
  const at = e.composedPath()[0] as HTMLElement;
  return /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName) || at.isContentEditable;
}

/** Links within the page do not load it again. */
function onClick(e: MouseEvent): void {
  const a = (e.target as HTMLElement).closest?.("a");
  for (const menu of document.querySelectorAll<HTMLDetailsElement>("details.you[open], details.more-menu[open]")) {
    if (!menu.contains(e.target as HTMLElement) || a) menu.open = false;
  }
  if (!a || e.defaultPrevented || e.button !== 0 || e.ctrlKey || e.metaKey || e.shiftKey || a.origin !== location.origin || a.hasAttribute("data-plain")) return;
  e.preventDefault();
  view.filter = "";
  const instance = a.dataset.instance;
  if (!instance || currentProject()?.id !== world.open) go(a.pathname);
  sought = a.dataset.seek ?? "";
  if (instance) void showInstance(instance, redraw);
}

/** begin loads everything and follows the changes, or shows the page to sign in. */
async function begin(): Promise<void> {
  failure = "";
  try {
    await world.load();
    rememberSignIn(world.me?.id ?? "");
    arrive();
    if (!world.isFollowing()) void world.follow();
  } catch (e) {
    if (!(e instanceof Failure && e.status === 401)) failure = (e as Error).message;
    if (failure && !world.me) world.me = { id: "", name: "", admin: false, organization_name: "", access: "", token: { name: "", use: "", expires: null } };
  }
  starting = false;
  redraw();
}

async function main(): Promise<void> {
  world.start(redraw);
  world.listeners.push((e) => {
    void refreshSteps(e.project, redraw);
    if (e.project !== world.open || !world.open) return;
    addToTimeline(e);
    if (tabOf() === "graph") void loadGraph(e.project, redraw);
    if (tabOf() === "values" && /^(version|project)/.test(e.kind)) void loadValues(e.project, redraw);
    if (tabOf() === "versions" && /^(version|project|task)/.test(e.kind)) void loadVersions(e.project, redraw);
  });
  world.watchers.push((project, changed) => {
    addInstances(project, changed);
    void refreshInstance(changed, redraw);
    if (tabOf() === "graph") void loadGraph(project, redraw);
  });
  onSheet(redraw);
  addEventListener("popstate", arrive);
  addEventListener("keydown", onKey);
  addEventListener("click", onClick);
  setInterval(() => {
    if (document.hidden || !world.me) return;
    if (world.open && tabOf() === "") void refreshBalancers(world.open, redraw);
    redraw(); // ages and estimates
  }, 1000);
  onOtherSignIn(followPerson);
  addEventListener("hashchange", () => void enter()); // a sign-in link, pasted while the page is open
  await enter();
}

/** enter uses the sign-in link in the address, or an earlier session. */
async function enter(): Promise<void> {
  const link = linkInAddress();
  const refused = link && (await signInBy(link));
  if ((link && !refused) || hasReturned() || mayBeSignedIn()) await begin();
  starting = false;
  redraw();
  if (refused && world.me) ask({ title: "The sign-in link was not used", says: [h("span", null, refused)], verb: "" });
}

void main();

// The pages of organizations, people and the audit log: what the role of the person permits.

import { h, VNode } from "./dom";
import { auditView, loadAudit } from "./audit";
import { loadOrganization, loadOrganizations, organizationsView, organizationView } from "./organizations";
import { loadUsers, usersView } from "./people";
import { world } from "./world";

const limits = (): { role?: string; project?: string; organization?: string } => world.me!.token as { role?: string; project?: string; organization?: string };

const pages: { path: string; name: string; may: () => boolean }[] = [
  { path: "/admin", name: "Organizations", may: () => true },
  { path: "/admin/people", name: "People", may: () => world.me!.admin && !limits().role && !limits().project && !limits().organization },
  // Everyone owns a personal organization, but a limited session has not the rights of an owner.
  { path: "/admin/audit", name: "Audit", may: () => !limits().project && !limits().organization && (!limits().role || limits().role === "admin") },
];

/** mayAdminister reports whether the page shows the person anything. */
export const mayAdminister = (): boolean => !limits().project;

const organizationInPath = (): string => {
  const [, , at, name] = location.pathname.split("/").map(decodeURIComponent);
  return at === "organizations" && name ? name : "";
};

export function loadAdmin(redraw: () => void, go: (path: string) => void): void {
  const org = organizationInPath();
  if (org) void loadOrganization(org, redraw, go);
  else if (location.pathname === "/admin/people") void loadUsers(redraw);
  else if (location.pathname === "/admin/audit") void loadAudit(redraw);
  else void loadOrganizations(redraw);
}

export function adminView(): VNode {
  const org = organizationInPath();
  const page = org ? pages[0] : pages.find((p) => p.path === location.pathname);
  const shown = pages.filter((p) => p.may());
  return h("main", { key: "admin", class: "admin" },
    h("h1", null, "Admin"),
    shown.length > 1 && h("nav", { key: "tabs", class: "tabs", "aria-label": "Admin" }, shown.map((p) => h("a", { key: p.path, href: p.path, "aria-current": p === page ? "page" : null }, p.name))),
    !page || !page.may() ? h("p", { key: "none" }, "There is nothing here, or your role does not permit it. ", h("a", { href: "/admin" }, "Organizations"))
      : org ? organizationView() : page.path === "/admin/people" ? usersView() : page.path === "/admin/audit" ? auditView() : organizationsView());
}

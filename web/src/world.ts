// What the page knows: the state of the server at the start, and every change since then.

import { Changed, clock, Event, Failure, get, hooks, Instance, Me, Node, Project, readStream, Role, Task } from "./api";
import { identity } from "./identity";

export const maxEvents = 300;

/** The kinds of events that all pages need. Of the instances, only the project that is open needs more. */
const kinds = "instance.failed,instance.unhealthy,network,node,organization,package,project,service,settings,task,token,user,version,volume";

class World {
  me: Me | null = null;
  /** The id of the last person who was signed in. */
  private person = "";
  loaded = false;
  /** problem says why what is shown may be old; empty: it is live. */
  problem = "";
  projects = new Map<string, Project>();
  roles = new Map<string, Role>();
  tasks = new Map<string, Task>();
  events: Event[] = [];
  nodes: Node[] | null = null;
  /** The instances of the project that is open, by id. */
  instances = new Map<string, Instance>();
  open = "";
  openLoaded = false;
  /** Whether events of all kinds are followed, for the page that lists them. */
  private all = false;
  /** What the stream that is open brings. */
  private scope = "";
  listeners: ((e: Event) => void)[] = [];
  /** What is called when instances of the project that is open have changed. */
  watchers: ((project: string, changed: { revision: number; instance: Instance }[]) => void)[] = [];

  private revision = 0;
  private stream: AbortController | null = null;
  private changed = () => {};
  /** The instances that changed while the list is being read. */
  private during = new Set<Changed[]>(); // what changes while instances are read, for each reading
  private refreshing = new Map<string, "now" | "again">();

  /** start loads everything and follows the changes; changed is called after each. */
  start(changed: () => void): void {
    this.changed = changed;
    document.addEventListener("visibilitychange", () => {
      // A browser opens few connections to one server, so hidden pages give theirs up.
      if (document.hidden) this.stream?.abort();
      else if (this.me && this.loaded) void this.follow();
    });
  }

  async load(): Promise<void> {
    const me = await get<Me>("/v1/user");
    if (this.person && this.person !== me.id) return startAgain();
    this.person = me.id;
    this.me = me;
    identity.hasPassword = me.has_password ?? false;
    identity.provider = me.provider ?? "";
    const [state, list, queue, events] = await Promise.all([
      get<{ revision: number; projects: Project[] }>("/v1/state"),
      get<{ projects: { id: string; role?: Role }[] }>("/v1/projects"),
      get<{ tasks: Task[] }>("/v1/queue"),
      get<{ events: Event[] }>(`/v1/events?limit=100&kinds=${kinds}`),
    ]);
    this.projects = new Map(state.projects.map((p) => [p.id, p]));
    this.roles = new Map(list.projects.map((p) => [p.id, p.role ?? "viewer"]));
    this.tasks = new Map(queue.tasks.map((t) => [t.id, t]));
    this.events = events.events.filter((e) => e.revision <= state.revision).reverse();
    this.revision = state.revision;
    this.loaded = true;
    if (!this.projects.has(this.open)) this.forgetOpen();
    if (this.open) await Promise.all([this.loadInstances(), this.loadHistory()]);
    if (!me.admin) this.nodes = null;
    if (this.nodes) await this.loadNodes();
    this.changed();
  }

  private forgetOpen(): void {
    this.open = "";
    this.openLoaded = false;
    this.instances = new Map();
  }

  /** follow applies changes until the page is hidden or the person signs out. */
  async follow(): Promise<void> {
    this.stream?.abort();
    const stream = (this.stream = new AbortController());
    this.scope = this.wanted();
    for (let failures = 0; !stream.signal.aborted; ) {
      try {
        await readStream(`/v1/events?since=${this.revision}&states=true&access=${this.me?.access ?? ""}${this.scope}`, stream.signal, () => {
          failures = 0;
          this.report("");
        }, (kind, data, id) => {
          if (kind === "error" || stream.signal.aborted) return;
          if (kind === "state") this.setState(JSON.parse(data) as Project);
          else if (kind === "instances") this.setInstances(JSON.parse(data) as { project: string; instances: Changed[] });
          else if (kind === "access") void this.refresh("access", () => this.load().then(() => this.followWanted()));
          else this.apply(JSON.parse(data) as Event);
          this.pass(id);
        }, "", (id) => this.pass(id));
      } catch (e) {
        if (stream.signal.aborted || !this.me) return;
        if (e instanceof Failure && (e.status === 410 || e.status === 401)) {
          if (e.status === 410) await this.load().catch(() => {}); // the feed no longer reaches back that far
          if (e.status === 401) return;
        }
      }
      if (stream.signal.aborted) return;
      if (++failures > 1) this.report("The connection to the server is lost. What you see may be old; trying again.");
      await new Promise((r) => setTimeout(r, Math.min(5000, 250 * failures)));
    }
  }

  isFollowing(): boolean {
    return this.stream !== null && !this.stream.signal.aborted;
  }

  /** wanted says which events the page needs now. */
  private wanted(): string {
    return (this.all ? "" : `&kinds=${kinds}${this.open && "&detail=" + this.open}`) + (this.open && "&instances=" + this.open);
  }

  /** followWanted opens another stream if the page needs other events than before. */
  private followWanted(): void {
    if (this.loaded && !document.hidden && this.scope !== this.wanted()) void this.follow();
  }

  /** followAll follows events of all kinds, or no longer. */
  async followAll(all: boolean): Promise<void> {
    if (this.all === all) return;
    this.all = all;
    this.followWanted();
    if (all) this.addEvents((await get<{ events: Event[] }>("/v1/events?limit=100")).events);
  }

  /** pass notes up to which revision the stream has brought everything. */
  private pass(revision: string): void {
    this.revision = Math.max(this.revision, Number(revision) || 0);
  }

  private setState(p: Project): void {
    this.projects.set(p.id, p);
    if (!this.roles.has(p.id)) void this.refresh("role" + p.id, () => this.loadRole(p.id));
    this.changed();
  }

  private async loadRole(id: string): Promise<void> {
    this.roles.set(id, (await get<{ role?: Role }>(`/v1/projects/${id}`)).role ?? "viewer");
  }

  private report(problem: string): void {
    if (this.problem === problem) return;
    this.problem = problem;
    this.changed();
  }

  signOut(): void {
    this.stream?.abort();
    this.me = null;
    this.loaded = false;
    this.problem = "";
    this.projects.clear();
    this.tasks.clear();
    this.roles.clear();
    this.forgetOpen();
    this.events = [];
    this.nodes = null;
    this.changed();
  }

  private apply(e: Event): void {
    if (e.revision <= this.revision) return;
    this.revision = e.revision;
    this.events.unshift(e);
    if (this.events.length > maxEvents) this.events.length = maxEvents;
    const [noun, verb] = e.kind.split(".");
    const object = e.object as { id?: string } | null;
    if (noun === "task" && object?.id) {
      const t = object as Task;
      if (t.finished) this.tasks.delete(t.id);
      else this.tasks.set(t.id, t);
    } else if (noun === "node") {
      if (this.nodes) void this.refresh("nodes", () => this.loadNodes());
      // The instances of a node that is not reachable have no events of their own.
      if (this.open) void this.refresh("instances", () => this.loadInstances());
    } else if (noun === "project" && verb === "deleted" && object?.id) {
      this.projects.delete(object.id);
    }
    for (const f of this.listeners) f(e);
    this.changed();
  }

  private setInstances(of: { project: string; instances: Changed[] }): void {
    if (of.project !== this.open) return;
    for (const reading of this.during) reading.push(...of.instances);
    const changed: { revision: number; instance: Instance }[] = [];
    for (const c of of.instances) {
      const instance = place(this.instances, c);
      if (instance) changed.push({ revision: c.revision, instance });
    }
    for (const f of this.watchers) f(of.project, changed);
    this.changed();
  }

  /** refresh runs a request at once, and once more after it if it is asked for meanwhile. */
  private async refresh(key: string, run: () => Promise<void>): Promise<void> {
    if (this.refreshing.has(key)) {
      this.refreshing.set(key, "again");
      return;
    }
    do {
      this.refreshing.set(key, "now");
      try {
        await run();
      } catch {
        // The stream notices when the server is gone, and events ask again.
      }
      this.changed();
      await new Promise((r) => setTimeout(r, 150)); // many changes at once are one request
    } while (this.refreshing.get(key) === "again" && this.me);
    this.refreshing.delete(key);
  }

  async loadProject(id: string): Promise<void> {
    const one = (await get<{ projects: Project[] }>(`/v1/state?project=${id}`)).projects[0];
    if (!one) return;
    this.projects.set(id, one);
    if (!this.roles.has(id)) await this.loadRole(id);
  }

  /** show loads the instances of a project; empty: none is open. */
  async show(project: string): Promise<void> {
    if (this.open === project) return;
    this.open = project;
    this.openLoaded = false;
    this.instances = new Map();
    this.followWanted();
    if (project) await Promise.all([this.loadInstances(), this.loadHistory()]);
  }

  /** loadHistory adds the earlier events of the project that is open. */
  private async loadHistory(): Promise<void> {
    this.addEvents((await get<{ events: Event[] }>(`/v1/events?project=${this.open}&limit=50`)).events);
  }

  private addEvents(more: Event[]): void {
    const known = new Set(this.events.map((e) => e.revision));
    this.events = [...this.events, ...more.filter((e) => !known.has(e.revision))].sort((a, b) => b.revision - a.revision);
    this.changed();
  }

  private async loadInstances(): Promise<void> {
    const project = this.open;
    const all = new Map<string, Instance>();
    const during: Changed[] = [];
    this.during.add(during);
    try {
      for (let marker = ""; ; ) {
        const page = await get<{ instances: Instance[]; marker?: string }>(`/v1/instances?project=${project}&limit=1000${marker && "&marker=" + encodeURIComponent(marker)}`);
        if (project !== this.open) return;
        for (const i of page.instances) if (i.state !== "destroyed") all.set(i.id, i);
        if (!page.marker) break;
        marker = page.marker;
      }
    } finally {
      this.during.delete(during);
    }
    for (const c of during) place(all, c);
    this.instances = all;
    this.openLoaded = true;
    this.changed();
  }

  /** isNode reports whether a node is known by its name, from the list or from what runs on it. */
  isNode(name: string): boolean {
    if (this.nodes?.some((n) => n.name === name)) return true;
    for (const i of this.instances.values()) if (i.node_name === name) return true;
    return false;
  }

  async loadNodes(): Promise<void> {
    if (!this.me?.admin) return;
    this.nodes = (await get<{ nodes: Node[] }>("/v1/nodes")).nodes;
    this.changed();
  }
}

/** place applies a change, and returns the instance as it is then; null if its name is not known: the list has it, or it is gone. */
function place(all: Map<string, Instance>, c: Changed): Instance | null {
  const was = all.get(c.id);
  if (!was && c.name === undefined) return null;
  // What is absent is empty; what the instance is like is absent if it has not changed.
  const blank = c.name === undefined ? {} : { slot: "", number: undefined, node: "", node_name: "", managed: false };
  const now = { ...was, ...blank, started: null, finished: null, exit_code: null, restarts: 0, reason: "", ...c } as Instance;
  if (c.state === "destroyed") all.delete(c.id);
  else all.set(c.id, now);
  return now;
}

/** startAgain forgets everything that was shown, typed or revealed: it belongs to another person. */
function startAgain(): Promise<never> {
  location.reload();
  return new Promise(() => {});
}

export const world = new World();

/** followPerson notices that another person has signed in, in another tab. */
export function followPerson(id: string): void {
  if (id && world.me?.id && world.me.id !== id) void startAgain();
}

hooks.onSignedOut = () => world.signOut();

export const ranks: Role[] = ["none", "viewer", "deployer", "operator", "admin"];

/** may reports whether the person has at least a role in a project. */
export function may(project: string, role: Role): boolean {
  return ranks.indexOf(world.roles.get(project) ?? "none") >= ranks.indexOf(role);
}

/** mayCreate reports whether the person can create projects at all. */
export function mayCreate(): boolean {
  const t = world.me?.token;
  return t !== undefined && !t.project && (!t.role || ranks.indexOf(t.role) > ranks.indexOf("viewer"));
}

/** ago says how long ago a time was. */
export function ago(time: string | null): string {
  if (!time) return "";
  return span(clock.now() - Date.parse(time)) + " ago";
}

/** span says how long something takes, in one unit. */
export function span(ms: number): string {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 86400) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

/** count says a number with its noun: 1 instance, 2 instances. */
export function count(n: number, noun: string): string {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}

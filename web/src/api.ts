// The documents of the public API that the page reads, and how it asks for them.

export type Status = "converged" | "converging" | "backing-off" | "blocked" | "held" | "frozen" | "paused" | "failed" | "stopped";

export interface Service {
  id: string; name: string; version: string; number: number; goal: number; running: number; healthy: number; starting: number;
  stopping: number; failed: number; unknown: number; outdated: number; frozen: boolean; paused: boolean; status: Status; reason: string;
  reason_code: string; backoff: { failures: number; until: string } | null;
}

export interface Project {
  id: string; name: string; organization: string; organization_name: string; version: string; goal: "started" | "stopped" | "deleted";
  status: Status; frozen: boolean; paused: boolean; reason: string; reason_code: string; services: Service[];
}

export type Role = "none" | "viewer" | "deployer" | "operator" | "admin";

export interface Task {
  id: string; project: string; project_name: string; services: string[]; component: string; task: string; state: "queued" | "active" | "completed" | "failed" | "terminated";
  origin: "user" | "mariposa"; author: string; reason: string; waits?: string; created: string; started: string | null; finished: string | null;
  progress: { done: number; total: number }; eta: string | null; version: string; number?: number; node_name?: string; steps?: Step[];
}

export interface Step { revision: number; at: string; instance_name: string; node_name: string; step: string; result: string; reason: string }

export interface Instance {
  id: string; name: string; slot: string; project: string; project_name: string; service_name: string; number?: number; compute_type: string;
  node: string; node_name: string; state: string; health: string; goal: string; addresses: string[]; created: string; started: string | null;
  finished: string | null; exit_code: number | null; restarts: number; reason: string; managed: boolean; environment?: string[];
  details?: Record<string, string>; command?: string[]; checks?: Check[];
}

/** Check is the result of a health check, as of its last change. */
export interface Check { name: string; health: string; reason?: string; since: string }

/** Changed is what has changed of an instance. What it is like, from its name on, is there only if that is new. */
export interface Changed extends Partial<Instance> { revision: number; id: string; state: string; health: string }

export interface Event {
  revision: number; time: string; kind: string; project: string; project_name: string; service_name: string; instance: string; instance_name: string;
  node: string; node_name: string; task: string; actor: string; reason: string; object: unknown;
}

export interface Node {
  id: string; name: string; rack: string; dc: string; status: string; reason: string; instances: number; eligible: boolean; dummy: boolean;
  drain: { state: string; left: number } | null; capacity: Resources; reserved: Resources; drivers: string[]; last_heartbeat: string | null;
}

export interface Resources { milli_cpu?: number; memory?: number; disk?: number; instances?: number }

export interface Me { id: string; name: string; admin: boolean; organization_name: string; has_password?: boolean; provider?: string; access: string; token: { name: string; use: string; role?: Role; project?: string; expires: string | null } }

export interface Fault { field: string; message: string; line?: number }

/** Failure is an error of the API, or of the connection to it. */
export class Failure extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly request: string, readonly faults: Fault[] = []) {
    super(message);
  }
}

/** clock.ahead is how far the server's clock is ahead of this one, in milliseconds. */
export const clock = { ahead: 0, now: () => Date.now() + clock.ahead };

/** onSignedOut is called when the server no longer accepts the session. */
export const hooks = { onSignedOut: () => {} };

/** request sends a request. A text is sent as YAML, everything else as JSON. */
export async function request(method: string, path: string, body?: unknown, accept = "application/json"): Promise<Response> {
  const headers: Record<string, string> = { Accept: accept };
  if (body !== undefined) headers["Content-Type"] = typeof body === "string" ? "application/yaml" : "application/json";
  if (method !== "GET") headers["Idempotency-Key"] = crypto.getRandomValues(new Uint32Array(4)).join("-");
  let r: Response;
  try {
    r = await fetch(path, { method, headers, body: body === undefined || typeof body === "string" ? body : JSON.stringify(body), cache: "no-store" });
  } catch {
    throw new Failure(0, "Unreachable", "The server does not answer.", "");
  }
  const time = Date.parse(r.headers.get("Mariposa-Time") ?? "");
  if (time) clock.ahead = time - Date.now();
  if (r.ok) return r;
  const doc = (await r.json().catch(() => ({}))) as { code?: string; message?: string; errors?: Fault[] };
  if (r.status === 401 && path !== "/v1/sessions") hooks.onSignedOut();
  throw new Failure(r.status, doc.code ?? "", doc.message ?? `The server answered ${r.status}.`, r.headers.get("X-Request-Id") ?? "", doc.errors ?? []);
}

export async function get<T>(path: string): Promise<T> {
  return (await request("GET", path)).json() as Promise<T>;
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  return (await request(method, path, body)).json() as Promise<T>;
}

/** readStream calls a function for each event of a stream, after the last one that was read, until
 * the stream ends. passed is called with the position of the stream when it says no more than that. */
export async function readStream(path: string, signal: AbortSignal, opened: () => void, on: (kind: string, data: string, id: string) => void, last = "", passed = (_id: string) => {}): Promise<void> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (last) headers["Last-Event-ID"] = last;
  const r = await fetch(path, { headers, signal, cache: "no-store" });
  if (!r.ok || !r.body) {
    if (r.status === 401) hooks.onSignedOut();
    const doc = (await r.json().catch(() => ({}))) as { code?: string; message?: string };
    throw new Failure(r.status, doc.code ?? "", doc.message ?? `The server answered ${r.status}.`, "");
  }
  opened();
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      let kind = "", data = "", id = "";
      for (const line of rest.slice(0, end).split("\n")) {
        if (line.startsWith("event: ")) kind = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
        else if (line.startsWith("id: ")) id = line.slice(4);
      }
      rest = rest.slice(end + 2);
      if (data) on(kind, data, id);
      else if (id) passed(id);
    }
  }
}

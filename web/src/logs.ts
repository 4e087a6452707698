// The logs of a project: the lines of all instances of a service, in the order of their times.

import { clock, Failure, Instance, Project, readStream } from "./api";
import { h, VNode } from "./dom";
import { fromBase64, plain } from "./plain";
import { explain } from "./sheet";
import { time } from "./views";
import { world } from "./world";

/** A line as it is shown, and as it was written. */
interface Line { at: string; name: string; text: string; raw: string; n: number }

const maxLines = 2000;
const maxInstances = 20; // whose logs are read: a browser has few connections
const interval = 1500; // milliseconds between two readings

let shown = { project: "", service: "" };
let lines: Line[] = [];
let read = new Map<string, string>(); // how much of each log was read, by instance
let begins = new Map<string, Line>(); // lines that are not complete yet, by instance
const complete = "complete";
let filter = "";
let follow = true;
let error = "";
let loading = false;
let timer = 0;
let next = 0;
let redraw = () => {};

/** openLogs shows the logs of a service. */
export function openLogs(project: string, service: string, changed: () => void): void {
  redraw = changed;
  if (shown.project === project && shown.service === service && timer) return;
  closeLogs();
  shown = { project, service };
  lines = [];
  read = new Map();
  begins = new Map();
  error = "";
  void readAll();
}

export function closeLogs(): void {
  clearTimeout(timer);
  timer = 0;
  shown = { project: "", service: "" };
}

const instancesOf = (service: string): Instance[] =>
  [...world.instances.values()].filter((i) => i.service_name === service && i.compute_type !== "dummy" && i.state !== "pending").sort((a, b) => b.created.localeCompare(a.created));

/** readAll reads what the logs have in addition to what was read before. */
async function readAll(): Promise<void> {
  const of = shown;
  if (!loading && of.service && (follow || read.size === 0) && !document.hidden) {
    loading = true;
    let failed = "";
    for (const i of instancesOf(of.service).slice(0, maxInstances)) {
      if (shown !== of) break;
      try {
        failed = (await readOne(i)) || failed;
      } catch (e) {
        if (!(e instanceof Failure) || e.status !== 409) failed = explain(e); // 409: it has no log yet, or no more
      }
    }
    loading = false;
    if (shown === of) error = failed;
    if (lines.length > maxLines) lines = lines.slice(-maxLines);
    redraw();
  }
  if (shown === of) timer = window.setTimeout(() => void readAll(), world.openLoaded ? interval : 100);
}

/** readOne returns why the server ended the log, if it says that. */
async function readOne(i: Instance): Promise<string> {
  const last = read.get(i.id) ?? "";
  if (last === complete) return "";
  let failed = "";
  const fresh: Line[] = [];
  read.set(i.id, last);
  await readStream(`/v1/instances/${i.id}/logs${last ? "" : "?tail=200"}`, new AbortController().signal, () => {}, (kind, data, id) => {
    if (id) read.set(i.id, id);
    if (kind === "end" && (i.state === "failed" || i.state === "stopped")) read.set(i.id, complete);
    if (kind === "error") failed = (JSON.parse(data) as { message: string }).message;
    if (kind === "gap") fresh.push({ at: new Date(clock.now()).toISOString(), name: i.name, text: "(lines were deleted here)", raw: "", n: next++ });
    if (kind !== "") return;
    const line = JSON.parse(data) as { time?: string; text: string; bytes?: string; partial?: boolean };
    const begun = begins.get(i.id);
    const raw = (begun?.raw ?? "") + (line.bytes ? fromBase64(line.bytes) : line.text);
    const whole = { at: begun?.at ?? line.time ?? new Date(clock.now()).toISOString(), name: i.name, text: plain(raw), raw, n: begun?.n ?? next++ };
    if (begun) lines = lines.filter((l) => l.n !== begun.n);
    if (begun && fresh.at(-1)?.n === begun.n) fresh.pop();
    fresh.push(whole);
    if (line.partial && raw.length < 10_000) begins.set(i.id, whole);
    else begins.delete(i.id);
  }, last);
  if (fresh.length > 0) lines = [...lines, ...fresh].sort((a, b) => a.at.localeCompare(b.at) || a.n - b.n);
  return failed;
}

export function logsView(p: Project, path: (service: string) => string): VNode {
  if (p.services.length === 0) return h("p", { class: "quiet" }, "This project has no services.");
  const all = instancesOf(shown.service);
  const isReading = loading || !world.openLoaded || all.slice(0, maxInstances).some((i) => !read.has(i.id));
  const want = filter.toLowerCase();
  const found = want ? lines.filter((l) => l.text.toLowerCase().includes(want) || l.name.includes(want)) : lines;
  return h("div", { class: "logs" },
    h("div", { class: "bar-of-controls" },
      h("nav", { "aria-label": "Services", class: "choices" }, p.services.map((s) => h("a", { key: s.name, href: path(s.name), "aria-current": s.name === shown.service ? "page" : null }, s.name))),
      h("input", { type: "search", placeholder: "Filter lines", "aria-label": "Filter lines", value: filter, oninput: (e: Event) => {
        filter = (e.target as HTMLInputElement).value;
        redraw();
      } }),
      h("label", null, h("input", { type: "checkbox", checked: follow, onchange: (e: Event) => {
        follow = (e.target as HTMLInputElement).checked;
        redraw();
      } }), " Follow")),
    all.length > maxInstances && h("p", { key: "many", class: "quiet" }, `The newest ${maxInstances} of ${all.length} instances are shown.`),
    error && h("p", { key: "error", class: "error", role: "alert" }, error),
    found.length === 0 && h("p", { key: "none", class: "quiet" }, isReading && lines.length === 0 ? "Loading lines…" : filter ? "No line contains this text." : all.length === 0 ? "Nothing here has a log." : "No output yet."),
    found.length > 0 && h("div", { key: "lines", class: "lines", tabindex: 0, role: "log", "aria-label": `Log of ${shown.service}`, use: stick }, found.map((l) => h("div", { key: l.n, memo: l }, () => [
      h("time", { datetime: l.at }, time(l.at)), h("span", { class: "quiet" }, l.name), h("span", { class: "text" }, l.text),
    ]))));
}

/** stick keeps the newest line in view, unless the person reads older ones. */
function stick(el: HTMLElement, isNew: boolean): void {
  const atEnd = Number(el.dataset.end ?? 0);
  if (isNew || (follow && el.scrollTop + el.clientHeight >= atEnd - 24)) el.scrollTop = el.scrollHeight;
  el.dataset.end = String(el.scrollHeight);
}

// A shell inside an instance, at the bottom of the page. It stays open while the person looks at
// other parts of the page.

import { Instance } from "./api";
import { h, VNode } from "./dom";
import { ask } from "./sheet";
import type { create, Screen } from "./xterm";

interface Shell {
  instance: { id: string; name: string; node: string };
  console: boolean;
  phase: "loading" | "connecting" | "open" | "ended";
  says: string;
  screen: Screen | null;
  socket: WebSocket | null;
}

// The first byte of a message is its type.
const input = 0, stdout = 1, stderr = 2, end = 3, resize = 4;

const maxPiece = 64 << 10; // of input that is sent at once
const maxPending = 32 << 20; // of output that is not shown yet

let shell: Shell | null = null;
let redraw = () => {};
let library: Promise<{ create: typeof create }> | null = null;

/** canOpenShell reports whether commands can run inside an instance: in a shell, or on its console. */
export const canOpenShell = (i: Instance): boolean => i.state === "running" && ["docker", "infrastructure", "process", "kvm"].includes(i.compute_type);

export const isConsole = (i: Instance): boolean => i.compute_type === "kvm";

/** openShell opens a shell, and ends the one before. */
export function openShell(i: Instance, changed: () => void): void {
  closeShell();
  redraw = changed;
  shell = { instance: { id: i.id, name: i.name, node: i.node_name }, console: isConsole(i), phase: "loading", says: "", screen: null, socket: null };
  redraw();
}

export function closeShell(): void {
  const s = shell;
  shell = null;
  s?.socket?.close();
  s?.screen?.close();
}

function finish(s: Shell, says: string): void {
  if (s.phase === "ended") return;
  s.phase = "ended";
  s.says = says;
  s.socket?.close();
  redraw();
}

async function start(s: Shell, host: HTMLElement): Promise<void> {
  let make: typeof create;
  try {
    library ??= import("/assets/xterm.js") as Promise<{ create: typeof create }>;
    make = (await library).create;
  } catch {
    library = null;
    finish(s, "The terminal did not load. Reload the page.");
    return;
  }
  if (shell !== s) return;
  const tell = (type: number, body: Uint8Array): void => {
    if (s.socket?.readyState !== WebSocket.OPEN) return;
    for (let at = 0; at < body.length; at += maxPiece) s.socket.send(message(type, body.subarray(at, at + maxPiece)));
  };
  s.screen = make(host, `Terminal of ${s.instance.name}`, (data) => tell(input, data), (rows, cols) => {
    if (!s.console) tell(resize, new TextEncoder().encode(JSON.stringify({ rows, cols })));
  });
  connect(s);
}

function message(type: number, body: Uint8Array): Uint8Array {
  const all = new Uint8Array(body.length + 1);
  all[0] = type;
  all.set(body, 1);
  return all;
}

/** connect runs the command by the public API. */
function connect(s: Shell): void {
  const { rows, cols } = s.screen!.size();
  const query = s.console ? "console=true" : new URLSearchParams({ tty: "true", rows: String(rows), cols: String(cols) }).toString();
  const socket = (s.socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/v1/instances/${s.instance.id}/exec?${query}`));
  socket.binaryType = "arraybuffer";
  s.phase = "connecting";
  let pending = 0;
  socket.onmessage = (e: MessageEvent<ArrayBuffer>) => {
    const body = new Uint8Array(e.data, 1);
    const type = new Uint8Array(e.data, 0, 1)[0];
    if (s.phase === "connecting" && type !== end) opened(s);
    if (type === stdout || type === stderr) {
      pending += body.length;
      s.screen?.write(body, () => { pending -= body.length; });
      if (pending > maxPending) finish(s, "The command wrote more than the browser could show, so the connection was closed and the command terminated.");
    } else if (type === end) {
      const last = JSON.parse(new TextDecoder().decode(body)) as { exit_code?: number; code?: string; message?: string };
      if (last.code === "ReauthenticationRequired") askWho(s);
      finish(s, last.exit_code !== undefined ? `The command ended with exit code ${last.exit_code}.` : `${sentenceOf(last.message ?? "The server ended it")}.`);
    }
  };
  socket.onopen = () => {
    if (s.console) opened(s);
  };
  socket.onclose = () => finish(s, s.phase === "open" ? "The connection broke, and the command was terminated." : "The server did not accept the connection. It may be unreachable, or you may not run commands here.");
  redraw();
}

/** askWho asks for the proof that the server wants, and opens the shell again. */
function askWho(s: Shell): void {
  ask({
    title: `Open a shell in ${s.instance.name}`, says: ["Commands inside an instance can read its secrets."], verb: "Open", keep: "Cancel", proves: true,
    run: async () => {
      if (shell === s) again(s);
    },
  });
}

function again(s: Shell): void {
  s.screen?.close();
  shell = { ...s, phase: "loading", says: "", screen: null, socket: null };
  redraw();
}

const sentenceOf = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

function opened(s: Shell): void {
  s.phase = "open";
  s.screen?.focus();
  redraw();
}

export function shellView(): VNode | null {
  const s = shell;
  if (!s) return null;
  const where = `${s.console ? "console" : "/bin/sh"} on ${s.instance.node}`;
  return h("section", { key: "shell", class: "shell", "aria-label": `Shell in ${s.instance.name}`, "data-phase": s.phase },
    h("header", null,
      h("h2", null, s.instance.name),
      h("p", { class: "quiet where" }, where),
      h("p", { class: s.phase === "ended" ? "says" : "says quiet", role: "status" }, s.phase === "ended" ? s.says : s.phase === "open" ? "Shift+Tab leaves the terminal" : "Connecting…"),
      s.phase === "ended" && h("button", { key: "again", onclick: () => again(s) }, "Open again"),
      h("button", { key: "close", class: "plain", onclick: () => {
        closeShell();
        redraw();
      } }, s.phase === "open" ? "End the shell" : "Close")),
    h("div", { key: "screen", class: "screen", use: (el: HTMLElement) => {
      if (s.phase !== "loading" || s.screen || el.dataset.of === "loading") return;
      el.dataset.of = "loading";
      el.replaceChildren();
      requestAnimationFrame(() => {
        delete el.dataset.of;
        if (shell === s) void start(s, el);
      });
    } }));
}

// The terminal: xterm.js. It is a file of its own, which is loaded when the first shell opens.

import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import css from "@xterm/xterm/css/xterm.css";
import { adopt, strictDocument } from "./strict";

export interface Screen {
  write(data: Uint8Array, done: () => void): void;
  size(): { rows: number; cols: number };
  focus(): void;
  close(): void;
}

/** colors are those of the page, in its current scheme. */
function colors(): Record<string, string> {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string): string => style.getPropertyValue("--" + name).trim();
  const both = (name: string, color: string): Record<string, string> => ({ [name]: color, ["bright" + name[0].toUpperCase() + name.slice(1)]: color });
  return {
    background: of("panel"), foreground: of("ink"), cursor: of("ink"), cursorAccent: of("panel"), selectionBackground: of("accent") + "44", selectionInactiveBackground: of("gray") + "44",
    ...both("black", of("quiet")), ...both("white", of("ink")), ...both("red", of("fail")), ...both("green", of("ok")), ...both("yellow", of("ill")),
    ...both("blue", of("accent")), ...both("magenta", of("held")), ...both("cyan", of("cold")),
  };
}

let isStyled = false;

/** create puts a terminal into an element, as large as the element is. */
export function create(host: HTMLElement, label: string, input: (data: Uint8Array) => void, resized: (rows: number, cols: number) => void): Screen {
  if (!isStyled) adopt(css);
  isStyled = true;
  const terminal = new Terminal({
    documentOverride: strictDocument, theme: colors(), minimumContrastRatio: 4.5, fontSize: 13, lineHeight: 1.25, scrollback: 10_000,
    fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace', cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches,
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  terminal.open(host);
  terminal.textarea?.setAttribute("aria-label", label);
  fit.fit();
  // Everything goes to the command but Shift+Tab, which leaves the terminal.
  terminal.attachCustomKeyEventHandler((e) => !(e.key === "Tab" && e.shiftKey));
  const encoder = new TextEncoder();
  terminal.onData((text) => input(encoder.encode(text)));
  terminal.onBinary((text) => input(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  terminal.onResize(({ rows, cols }) => resized(rows, cols));
  const observer = new ResizeObserver(() => fit.fit());
  observer.observe(host);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const recolor = (): void => {
    terminal.options.theme = colors();
  };
  dark.addEventListener("change", recolor);
  return {
    write: (data, done) => terminal.write(data, done),
    size: () => ({ rows: terminal.rows, cols: terminal.cols }),
    focus: () => terminal.focus(),
    close: () => {
      observer.disconnect();
      dark.removeEventListener("change", recolor);
      terminal.dispose();
    },
  };
}

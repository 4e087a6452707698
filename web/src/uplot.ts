// Charts: uPlot. It is a file of its own, which is loaded when the first chart is shown.

import uPlot from "uplot";
import css from "uplot/dist/uPlot.min.css";

export interface Line {
  label: string;
  /** A color of the page: the name of a custom property. */
  color: string;
  kind: "area" | "line" | "bars";
  dashed?: boolean;
  values: (number | null)[];
}

export interface Data {
  /** What a person who does not see the chart is told. */
  summary: string;
  times: number[]; // seconds
  lines: Line[];
  /** The end of the vertical axis; without it, the highest value. */
  max?: number;
  unit?: string;
}

export interface Chart {
  show(data: Data): void;
  close(): void;
}

const token = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const clock = (s: number, seconds = false): string => new Date(s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hour12: false });
const font = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif';
const height = 132;

let isStyled = false;

function series(l: Line, unit: string): uPlot.Series {
  return {
    label: l.label, stroke: () => token(l.color), width: l.kind === "bars" ? 0 : 1.5, dash: l.dashed ? [4, 3] : undefined, points: { show: false },
    fill: l.kind === "line" ? undefined : () => token(l.color) + (l.kind === "area" ? "22" : ""),
    paths: l.kind === "bars" ? uPlot.paths.bars!({ size: [0.9, 6, 2] }) : uPlot.paths.stepped!({ align: 1 }),
    value: (_, v) => (v === null || v === undefined ? "–" : `${Number.isInteger(v) ? v : v.toFixed(1)}${unit}`),
  };
}

function options(data: Data, width: number, group: string): uPlot.Options {
  const unit = data.unit ?? "";
  return {
    width, height, padding: [8, 24, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: group } },
    legend: { live: true },
    scales: { x: { time: true }, y: { range: (_, __, most) => [0, data.max ?? Math.max(1, most ?? 0) * 1.15] } },
    axes: [
      { stroke: () => token("quiet"), font, size: 28, grid: { show: false }, ticks: { show: false }, space: 72, values: (_, all) => all.map((s) => clock(s)) },
      { stroke: () => token("quiet"), font, size: 48, gap: 8, grid: { stroke: () => token("line"), width: 1 }, ticks: { show: false }, space: 32, incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000], values: (_, all) => all.map((v) => `${v}${unit}`) },
    ],
    series: [{ label: "Time", value: (_, v) => (v ? clock(v, true) : "–") }, ...data.lines.map((l) => series(l, unit))],
  };
}

/** create puts a chart into an element, as wide as the element is. Charts of a group show the same time. */
export function create(host: HTMLElement, first: Data, group: string): Chart {
  if (!isStyled) {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
    document.adoptedStyleSheets = [sheet, ...document.adoptedStyleSheets];
    isStyled = true;
  }
  host.setAttribute("role", "img");
  let data = first;
  const points = (): uPlot.AlignedData => [data.times, ...data.lines.map((l) => l.values)];
  const plot = new uPlot(options(data, Math.max(200, host.clientWidth), group), points(), host);
  host.setAttribute("aria-label", data.summary);
  const observer = new ResizeObserver(() => plot.setSize({ width: Math.max(200, host.clientWidth), height }));
  observer.observe(host);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const recolor = (): void => plot.redraw(true, true);
  dark.addEventListener("change", recolor);
  return {
    show: (next) => {
      data = next;
      host.setAttribute("aria-label", data.summary);
      plot.setData(points());
    },
    close: () => {
      observer.disconnect();
      dark.removeEventListener("change", recolor);
      plot.destroy();
    },
  };
}

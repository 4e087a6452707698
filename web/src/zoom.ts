// Which part of time a timeline shows: the wheel zooms, dragging moves, and so do keys.

import { clock } from "./api";
import { Props } from "./dom";

const least = 5_000;
const most = 7 * 86_400_000;

let span = 0; // 0: what fits
let end = 0; // 0: now
let drag: { x: number; end: number; isMoving: boolean } | null = null;

export const spanOf = (fits: number): number => span || fits;
export const endOf = (now: number): number => end || now;
export const isNow = (): boolean => end === 0;

export function reset(): void {
  span = end = 0;
  drag = null;
}

/** showLast shows the last so many milliseconds. */
export function showLast(ms: number): void {
  span = ms;
  end = 0;
}

export function showNow(): void {
  end = 0;
}

/** zoom makes the span longer or shorter. What is at a share of the width stays there. */
export function zoom(by: number, at: number, fits: number, now: number): void {
  const was = spanOf(fits);
  const next = Math.max(least, Math.min(most, was * by));
  const there = endOf(now) - was * (1 - at);
  const isAtNow = isNow() && at > 0.95;
  span = next;
  moveTo(isAtNow ? now : there + next * (1 - at), now);
}

/** moveTo sets the end. Nothing is shown after now. */
function moveTo(next: number, now: number): void {
  end = next >= now - 1 ? 0 : Math.max(next, now - most);
}

const lane = (e: { currentTarget: EventTarget | null }): DOMRect => (e.currentTarget as HTMLElement).querySelector(".lane")!.getBoundingClientRect();

/** handlers are those of the element with the lanes. */
export function handlers(fits: number, redraw: () => void): Props {
  return {
    use: (el: HTMLElement, isNew: boolean) => {
      // The browser lets a listener stop the page from scrolling only if it says so.
      if (isNew) el.addEventListener("wheel", (e) => onWheel(e, redraw), { passive: false });
      el.dataset.fits = String(fits);
    },
    onpointerdown: (e: PointerEvent) => {
      if (e.button === 0 && e.clientX >= lane(e).left) drag = { x: e.clientX, end: endOf(clock.now()), isMoving: false };
    },
    onpointermove: (e: PointerEvent) => {
      if (!drag) return;
      if (!drag.isMoving && Math.abs(e.clientX - drag.x) < 4) return;
      if (!drag.isMoving) (e.currentTarget as HTMLElement).setPointerCapture(e.pointerId);
      drag.isMoving = true;
      moveTo(drag.end - ((e.clientX - drag.x) / lane(e).width) * spanOf(fits), clock.now());
      redraw();
    },
    onpointerup: () => {
      const was = drag;
      drag = null;
      // The click that follows a drag opens nothing.
      if (was?.isMoving) addEventListener("click", stop, { capture: true, once: true });
      setTimeout(() => removeEventListener("click", stop, { capture: true }), 0);
    },
    onpointercancel: () => {
      drag = null;
    },
    onkeydown: (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      const now = clock.now();
      switch (e.key) {
        case "ArrowLeft": case "ArrowRight": moveTo(endOf(now) + (e.key === "ArrowLeft" ? -0.1 : 0.1) * spanOf(fits), now); break;
        case "+": case "=": zoom(0.5, 1, fits, now); break;
        case "-": zoom(2, 1, fits, now); break;
        case "Home": reset(); break;
        case "End": showNow(); break;
        default: return;
      }
      e.preventDefault();
      e.stopPropagation();
      redraw();
    },
  };
}

function stop(e: MouseEvent): void {
  e.preventDefault();
  e.stopPropagation();
}

function onWheel(e: WheelEvent, redraw: () => void): void {
  const box = lane(e);
  if (e.clientX < box.left || e.ctrlKey) return; // over the names, the page scrolls
  const fits = Number((e.currentTarget as HTMLElement).dataset.fits);
  const now = clock.now();
  if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) moveTo(endOf(now) + ((e.deltaX || e.deltaY) / box.width) * spanOf(fits), now);
  else zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 400))), Math.min(1, (e.clientX - box.left) / box.width), fits, now);
  e.preventDefault();
  redraw();
}

const steps = [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800].map((s) => s * 1000);

/** ticks are round times, few enough to read. */
export function ticks(from: number, to: number): { at: number; text: string }[] {
  const isNarrow = innerWidth < 760;
  const step = steps.find((s) => (to - from) / s <= (isNarrow ? 3 : 8)) ?? steps[steps.length - 1];
  const away = new Date().getTimezoneOffset() * 60_000; // round where the person is
  const out: { at: number; text: string }[] = [];
  for (let t = Math.ceil((from - away) / step) * step + away; t < to - (to - from) * (isNarrow ? 0.3 : 0.06); t += step) {
    const d = new Date(t);
    const text = step >= 86_400_000 ? d.toLocaleDateString([], { day: "numeric", month: "short" }) : d.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: step < 60_000 ? "2-digit" : undefined, hour12: false });
    out.push({ at: t, text });
  }
  return out;
}

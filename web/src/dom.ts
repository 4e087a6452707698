// A small virtual DOM: views are functions of the state, and only what differs is written to
// the document. Text always becomes a text node, never HTML.

export type Child = VNode | string | number | null | undefined | false;
type Kids = Child[] | (() => Child[]);

export interface Props {
  key?: string | number;
  /** If it is the same object as before, the element and its children are left as they are. */
  memo?: unknown;
  /** Is called with the element after it was created or changed. */
  use?: (el: HTMLElement, isNew: boolean) => void;
  [name: string]: unknown;
}

export interface VNode {
  tag: string;
  props: Props;
  kids: Kids;
  built?: VNode[];
  el?: Node;
}

/** h describes an element. */
export function h(tag: string, props: Props | null = null, ...kids: (Child | Child[] | (() => Child[]))[]): VNode {
  if (kids.length === 1 && typeof kids[0] === "function") return { tag, props: props ?? {}, kids: kids[0] };
  return { tag, props: props ?? {}, kids: (kids as (Child | Child[])[]).flat() };
}

/** Characters that turn the direction of the text around them. The page would say something else than
 * it means if a message or a log line had them, so a replacement character shows where they are. */
const turning = /[\u202a-\u202e\u2066-\u2069]/g;

const text = (s: string): VNode => ({ tag: "#", props: { text: s.replace(turning, "\ufffd") }, kids: [] });

function build(kids: Kids): VNode[] {
  const list = typeof kids === "function" ? kids() : kids;
  const out: VNode[] = [];
  for (const k of list) {
    if (k === null || k === undefined || k === false || k === "") continue;
    out.push(typeof k === "object" ? k : text(String(k)));
  }
  return out;
}

function create(v: VNode, svg: boolean): Node {
  if (v.tag === "#") return (v.el = document.createTextNode(String(v.props.text)));
  const inSVG = svg || v.tag === "svg";
  const el = inSVG ? document.createElementNS("http://www.w3.org/2000/svg", v.tag) : document.createElement(v.tag);
  v.el = el;
  for (const name in v.props) setProp(el as HTMLElement, name, undefined, v.props[name]);
  v.built = build(v.kids);
  for (const k of v.built) el.appendChild(create(k, inSVG));
  if (v.tag === "select" || v.tag === "textarea") setProp(el as HTMLElement, "value", undefined, v.props.value);
  v.props.use?.(el as HTMLElement, true);
  return el;
}

const asProperty = new Set(["value", "checked", "disabled", "open", "indeterminate"]);

function setProp(el: HTMLElement, name: string, old: unknown, next: unknown): void {
  if (name === "key" || name === "memo" || name === "use") return;
  if (name === "value" && el.tagName !== "OPTION") { // the value of an option without one is its text
    if (next !== undefined && (el as HTMLInputElement).value !== String(next)) (el as HTMLInputElement).value = String(next);
    return;
  }
  if (old === next) return;
  if (name === "style") {
    for (const [k, v] of Object.entries((next ?? {}) as Record<string, string>)) el.style.setProperty(k, v);
  } else if (name.startsWith("on") || asProperty.has(name)) {
    (el as unknown as Record<string, unknown>)[name] = next ?? null;
  } else if (next === null || next === undefined || next === false) {
    el.removeAttribute(name);
  } else {
    el.setAttribute(name, next === true ? "" : String(next));
  }
}

function patch(old: VNode, next: VNode): void {
  if (old === next) return; // a constant part of a view
  next.el = old.el;
  if (next.tag === "#") {
    if (old.props.text !== next.props.text) (old.el as Text).data = String(next.props.text);
    return;
  }
  if (next.props.memo !== undefined && next.props.memo === old.props.memo) {
    next.built = old.built;
    return;
  }
  const el = old.el as HTMLElement;
  for (const name in old.props) if (!(name in next.props)) setProp(el, name, old.props[name], undefined);
  for (const name in next.props) setProp(el, name, old.props[name], next.props[name]);
  next.built = build(next.kids);
  patchKids(el, old.built ?? [], next.built);
  next.props.use?.(el, false);
}

function keyOf(v: VNode, i: number): string {
  return v.props.key !== undefined ? "k" + v.props.key + v.tag : "i" + i + v.tag;
}

function patchKids(el: Element, old: VNode[], next: VNode[]): void {
  const known = new Map<string, VNode>();
  old.forEach((v, i) => known.set(keyOf(v, i), v));
  // What goes is removed first, so that what stays is not moved: that would take its focus away.
  const kept = new Set(next.map(keyOf));
  for (const [key, v] of known) {
    if (kept.has(key)) continue;
    known.delete(key);
    (v.el as ChildNode).remove();
  }
  const svg = el.namespaceURI === "http://www.w3.org/2000/svg";
  let at: Node | null = el.firstChild;
  next.forEach((v, i) => {
    const key = keyOf(v, i);
    const was = known.get(key);
    if (was) {
      known.delete(key);
      patch(was, v);
    } else {
      create(v, svg);
    }
    if (v.el === at) at = at!.nextSibling;
    else el.insertBefore(v.el!, at);
  });
}

/** mount shows a view in an element, and returns a function that shows the next one. */
export function mount(root: Element): (next: VNode) => void {
  let shown: VNode[] = [];
  return (v) => {
    const next = [v];
    patchKids(root, shown, next);
    shown = next;
  };
}

// The document for xterm.js, which writes styles in ways that the content security policy forbids.
// The bundle replaces `document` by it in the code of that package, and of all files with it.

export const adopt = (text: string): CSSStyleSheet => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  window.document.adoptedStyleSheets = [...window.document.adoptedStyleSheets, sheet];
  return sheet;
};

/** styleElement stands for a style element, which the content security policy forbids: it adopts
 * a style sheet instead. */
function styleElement(): HTMLElement {
  const sheet = adopt("");
  const el = window.document.createElement("template");
  Object.defineProperty(el, "textContent", { set: (text: string) => sheet.replaceSync(text) });
  el.remove = () => {
    Element.prototype.remove.call(el);
    window.document.adoptedStyleSheets = window.document.adoptedStyleSheets.filter((s) => s !== sheet);
  };
  return el;
}

/** span is an element whose style can be set as an attribute, which the policy forbids too. */
function span(): HTMLElement {
  const el = window.document.createElement("span");
  el.setAttribute = (name: string, value: string) => {
    if (name === "style") el.style.cssText = value;
    else Element.prototype.setAttribute.call(el, name, value);
  };
  return el;
}

const make = (tag: string): HTMLElement => (tag === "style" ? styleElement() : tag === "span" ? span() : window.document.createElement(tag));

export const strictDocument = new Proxy(window.document, {
  get(target, name) {
    if (name === "createElement") return make;
    const value: unknown = Reflect.get(target, name, target);
    return typeof value === "function" ? (value as (...all: unknown[]) => unknown).bind(target) : value;
  },
});

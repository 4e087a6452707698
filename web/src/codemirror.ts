// The text editor of manifests: CodeMirror with YAML. It is a file of its own, which is loaded
// when the first editor opens.
//
// The editor is in a shadow root: only there CodeMirror adopts its style sheet, instead of
// writing a style element, which the content security policy forbids.

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState, RangeSet, RangeSetBuilder, StateEffect, StateField } from "@codemirror/state";
import {
  Decoration, DecorationSet, drawSelection, EditorView, GutterMarker, gutterLineClass, highlightActiveLine, keymap, lineNumbers, MatchDecorator, ViewPlugin, ViewUpdate,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";

export interface Mark { line: number; message: string }

export interface Editor {
  text(): string;
  setText(text: string): void;
  /** Underlines the lines with faults. */
  setMarks(marks: Mark[]): void;
  /** Moves to a line. */
  goTo(line: number): void;
  close(): void;
}

const setMarks = StateEffect.define<Mark[]>();

class Wrong extends GutterMarker {
  elementClass = "wrong";
}
const wrong = new Wrong();

interface Marked { text: DecorationSet; gutter: RangeSet<GutterMarker> }

/** draw underlines lines from their first character to their last. */
function draw(state: EditorState, marks: Mark[]): Marked {
  const text = new RangeSetBuilder<Decoration>();
  const gutter = new RangeSetBuilder<GutterMarker>();
  const messages = new Map<number, string>();
  for (const m of marks) if (m.line >= 1 && m.line <= state.doc.lines) messages.set(m.line, [messages.get(m.line), m.message].filter(Boolean).join("\n"));
  for (const n of [...messages.keys()].sort((a, b) => a - b)) {
    const line = state.doc.line(n);
    const from = line.from + (line.text.length - line.text.trimStart().length);
    const to = line.from + line.text.trimEnd().length;
    gutter.add(line.from, line.from, wrong);
    if (from < to) text.add(from, to, Decoration.mark({ class: "wrong", attributes: { title: messages.get(n)! } }));
  }
  return { text: text.finish(), gutter: gutter.finish() };
}

const marked = StateField.define<Marked>({
  create: () => ({ text: Decoration.none, gutter: RangeSet.empty }),
  update(was, tr) {
    for (const e of tr.effects) if (e.is(setMarks)) return draw(tr.state, e.value);
    return tr.docChanged ? { text: was.text.map(tr.changes), gutter: was.gutter.map(tr.changes) } : was;
  },
  provide: (f) => [EditorView.decorations.from(f, (m) => m.text), gutterLineClass.from(f, (m) => m.gutter)],
});

/** Values that Mariposa fills in: {{ .meta.mode }}. */
const filled = new MatchDecorator({ regexp: /\{\{.*?\}\}/g, decoration: Decoration.mark({ class: "filled" }) });
const fills = ViewPlugin.define((view) => ({
  all: filled.createDeco(view),
  update(u: ViewUpdate) {
    this.all = filled.updateDeco(u, this.all);
  },
}), { decorations: (v) => v.all });

const colors = HighlightStyle.define([
  { tag: [tags.definition(tags.propertyName), tags.propertyName], color: "var(--code-key)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-text)" },
  { tag: [tags.labelName, tags.typeName, tags.keyword, tags.meta], color: "var(--code-mark)" },
  { tag: [tags.lineComment], color: "var(--quiet)", fontStyle: "italic" },
  { tag: [tags.separator, tags.punctuation, tags.squareBracket, tags.brace], color: "var(--quiet)" },
]);

const phrases = {
  next: "Next", previous: "Previous", all: "All", replace: "Replace", "replace all": "Replace all", "match case": "Match case", regexp: "Regular expression", "by word": "Whole words", close: "Close",
};

const mono = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';

const theme = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "transparent", fontSize: "12px", minHeight: "360px", maxHeight: "70vh" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: mono, lineHeight: "20px", overflow: "auto", minHeight: "360px" },
  ".cm-content": { padding: "12px 0", caretColor: "var(--ink)" },
  ".cm-line": { padding: "0 12px 0 8px" },
  ".cm-gutters": { backgroundColor: "var(--panel)", color: "var(--quiet)", border: "0", borderRadius: "6px 0 0 6px" },
  ".cm-lineNumbers .cm-gutterElement": { minWidth: "40px", padding: "0 8px 0 12px" },
  ".cm-gutterElement.wrong": { color: "var(--fail)", fontWeight: "600" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--line) 40%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)", borderLeftWidth: "2px" },
  ".cm-selectionBackground, &.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 22%, transparent)" },
  ".cm-selectionMatch": { backgroundColor: "color-mix(in srgb, var(--accent) 12%, transparent)" },
  "&.cm-focused .cm-matchingBracket": { backgroundColor: "transparent", outline: "1px solid var(--field)", borderRadius: "2px" },
  "&.cm-focused .cm-nonmatchingBracket": { backgroundColor: "transparent", color: "var(--fail)" },
  ".cm-line .wrong": { textDecoration: "underline wavy var(--fail)", textUnderlineOffset: "4px", textDecorationThickness: "1px" },
  ".filled, .filled span": { color: "var(--code-mark)" },
  ".cm-panels": { backgroundColor: "var(--panel)", color: "var(--ink)", border: "0", borderTop: "1px solid var(--line)", borderRadius: "0 0 6px 6px", zIndex: "1" },
  ".cm-panel.cm-search": { padding: "8px 32px 8px 12px", fontSize: "12px" },
  ".cm-panel.cm-search label": { fontSize: "12px", color: "var(--quiet)" },
  ".cm-textfield": { font: "inherit", color: "var(--ink)", backgroundColor: "var(--paper)", border: "1px solid var(--field)", borderRadius: "4px", padding: "3px 8px" },
  ".cm-button": { font: "inherit", color: "var(--ink)", backgroundImage: "none", backgroundColor: "transparent", border: "1px solid var(--field)", borderRadius: "4px", padding: "3px 8px" },
  ".cm-textfield:focus-visible, .cm-button:focus-visible": { outline: "2px solid var(--accent)", outlineOffset: "1px" },
  ".cm-panel.cm-search [name=close]": { color: "var(--quiet)", fontSize: "16px", right: "8px", top: "6px" },
  ".cm-searchMatch": { backgroundColor: "color-mix(in srgb, var(--accent) 20%, transparent)" },
  ".cm-searchMatch-selected": { backgroundColor: "color-mix(in srgb, var(--accent) 45%, transparent)" },
});

/** create puts an editor into an element. */
export function create(host: HTMLElement, text: string, label: string, changed: (text: string) => void): Editor {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open", delegatesFocus: true });
  const view = new EditorView({
    root, parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(), history(), drawSelection(), highlightActiveLine(), bracketMatching(), indentOnInput(), indentUnit.of("  "), EditorState.tabSize.of(2), highlightSelectionMatches(),
        search({ top: false }), EditorState.phrases.of(phrases), yaml(), syntaxHighlighting(colors), marked, fills, theme,
        // After Escape, Tab leaves the editor: CodeMirror does that itself.
        keymap.of([...searchKeymap, ...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ "aria-label": label, "aria-description": "Press Escape, then Tab, to leave the editor.", spellcheck: "false", tabindex: "0" }),
        EditorView.updateListener.of((u) => {
          if (u.docChanged) changed(u.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    text: () => view.state.doc.toString(),
    setText: (next) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: next } }),
    setMarks: (marks) => view.dispatch({ effects: setMarks.of(marks) }),
    goTo: (n) => {
      const line = view.state.doc.line(Math.max(1, Math.min(n, view.state.doc.lines)));
      view.dispatch({ selection: { anchor: line.from + (line.text.length - line.text.trimStart().length) }, effects: EditorView.scrollIntoView(line.from, { y: "center" }) });
      view.focus();
    },
    close: () => view.destroy(),
  };
}

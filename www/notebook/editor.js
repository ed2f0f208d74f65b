// A cell's editor: CodeMirror with Python or plain text, in the colours of style.css.

import {
  EditorView,
  HighlightStyle,
  Prec,
  basicSetup,
  indentUnit,
  indentWithTab,
  keymap,
  placeholder,
  python,
  syntaxHighlighting,
  tags,
} from "../../dist/www/codemirror.js";

const theme = EditorView.theme({
  "&": { backgroundColor: "transparent", color: "var(--ink)", fontSize: "0.86rem" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-content": { padding: "0.7rem 0", caretColor: "var(--sand-ink)" },
  ".cm-line": { padding: "0 1rem 0 0.35rem" },
  ".cm-gutters": { backgroundColor: "transparent", border: "none", color: "var(--muted)" },
  ".cm-lineNumbers .cm-gutterElement": { padding: "0 0.4rem 0 0.7rem", minWidth: "2.2rem" },
  ".cm-gutter.cm-foldGutter": { display: "none !important" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-activeLineGutter": { color: "var(--sand-ink)" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground, .cm-content ::selection": {
    backgroundColor: "var(--select) !important",
  },
  ".cm-selectionMatch": { backgroundColor: "var(--select)" },
  ".cm-cursor": { borderLeftColor: "var(--sand-ink)", borderLeftWidth: "2px" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "var(--select)", outline: "none" },
  ".cm-placeholder": { color: "var(--muted)", fontStyle: "italic" },
  ".cm-tooltip": { backgroundColor: "var(--card)", border: "1px solid var(--line)", borderRadius: "8px" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--select)", color: "var(--ink)" },
});

const colours = HighlightStyle.define([
  { tag: tags.comment, color: "var(--syn-comment)", fontStyle: "italic" },
  { tag: [tags.keyword, tags.modifier, tags.self], color: "var(--syn-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--syn-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--syn-number)" },
  {
    tag: [tags.function(tags.variableName), tags.function(tags.definition(tags.variableName))],
    color: "var(--syn-call)",
  },
  { tag: [tags.className, tags.definition(tags.className)], color: "var(--syn-call)" },
]);

/** Screens on which a line of code is wrapped, since it would be cut. */
const narrow = matchMedia("(width < 44rem)");

/**
 * @param {object} options
 * @param {HTMLElement} options.parent
 * @param {string} options.code
 * @param {"code" | "markdown"} options.kind
 * @param {(isChange: boolean) => void} options.onEdit  a change of the text, or the editor has got the focus
 * @param {() => void} options.onRun  Ctrl+Enter or Cmd+Enter
 * @param {() => void} options.onRunAndAdd  Shift+Enter
 * @param {(by: -1 | 1) => void} options.onMove  Ctrl+Shift with an arrow
 */
export function createEditor({ parent, code, kind, onEdit, onRun, onRunAndAdd, onMove }) {
  const run = () => (onRun(), true);
  const runAndAdd = () => (onRunAndAdd(), true);
  const isCode = kind === "code";
  const view = new EditorView({
    // In a shadow tree CodeMirror's styles are constructed sheets, which a policy without inline styles allows.
    parent: parent.attachShadow({ mode: "open" }),
    doc: code,
    extensions: [
      Prec.highest(
        keymap.of([
          { key: "Mod-Enter", run },
          { key: "Ctrl-Enter", run },
          { key: "Shift-Enter", run: runAndAdd },
          { key: "Ctrl-Shift-ArrowUp", run: () => (onMove(-1), true) },
          { key: "Ctrl-Shift-ArrowDown", run: () => (onMove(1), true) },
        ]),
      ),
      basicSetup,
      EditorView.updateListener.of(({ docChanged, focusChanged, view }) => {
        if ((docChanged || focusChanged) && view.hasFocus) onEdit(docChanged);
      }),
      keymap.of([indentWithTab]),
      isCode ? python() : EditorView.lineWrapping,
      narrow.matches ? EditorView.lineWrapping : [],
      indentUnit.of("    "),
      placeholder(isCode ? "Python. Ctrl+Enter runs it." : "Text in Markdown. Ctrl+Enter shows it."),
      theme,
      syntaxHighlighting(colours),
      EditorView.contentAttributes.of({
        tabindex: "0",
        "aria-label": `${isCode ? "Python code" : "Markdown"}; Escape, then Tab leaves the editor`,
      }),
    ],
  });
  return { code: () => view.state.doc.toString(), focus: () => view.focus(), destroy: () => view.destroy() };
}

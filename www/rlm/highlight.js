// Python code in colours. The parser is loaded when code is first shown.

import { el } from "../dom.js";

/** Length up to which code is coloured. */
const MAX_CHARS = 20_000;

/** @type {Promise<typeof import("../../dist/www/colours.js")> | undefined} */
let loading;

/** Shows code in an element: plain at once, in colours once they are known. @param {HTMLElement} element @param {string} code */
export async function showPython(element, code) {
  element.textContent = code;
  if (code.length > MAX_CHARS) return;
  loading ??= import("../../dist/www/colours.js");
  const { highlightTree, parser, tagHighlighter, tags } = await loading;
  if (element.textContent !== code) return;
  const colours = tagHighlighter([
    { tag: tags.comment, class: "syn-comment" },
    { tag: [tags.keyword, tags.modifier, tags.self], class: "syn-keyword" },
    { tag: [tags.string, tags.special(tags.string)], class: "syn-string" },
    { tag: [tags.number, tags.bool, tags.null], class: "syn-number" },
    {
      tag: [
        tags.function(tags.variableName),
        tags.function(tags.definition(tags.variableName)),
        tags.className,
        tags.definition(tags.className),
      ],
      class: "syn-call",
    },
  ]);
  /** @type {(Node | string)[]} */
  const parts = [];
  let end = 0;
  highlightTree(parser.parse(code), colours, (from, to, classes) => {
    if (from > end) parts.push(code.slice(end, from));
    parts.push(el("span", { class: classes, text: code.slice(from, to) }));
    end = to;
  });
  element.replaceChildren(...parts, code.slice(end));
}

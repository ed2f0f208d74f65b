// The output of a cell while it runs. The page keeps the beginning and the end only, so that 100 MB of output cost no
// more than a few pages of it.

import { el } from "./dom.js";

/** @typedef {"stdout" | "stderr"} Stream */
/** @typedef {{ stream: Stream, text: string }} Piece */

/** Bounds of each kept part: the beginning, and the end. */
const MAX_CHARS = 20_000;
const MAX_LINES = 400;
const MAX_PIECES = 200;
const PAINT_MS = 60;
const GAP = "\n⋯ the middle of the output is not shown ⋯\n";

/** The view of a cell's output: the beginning and the end of it. */
export class Output {
  /** @type {Piece[]} */
  #head = [];
  #headChars = MAX_CHARS;
  #headLines = MAX_LINES;
  #headPieces = MAX_PIECES;
  /** @type {Piece[]} */
  #tail = [];
  #tailChars = 0;
  #tailChanged = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  #headView = el("span");
  #gap = el("span", { class: "gap" });
  #tailView = el("span");
  element = el(
    "pre",
    { class: "output", role: "log", "aria-label": "Output", tabindex: "0", hidden: true },
    this.#headView,
    this.#gap,
    this.#tailView,
  );

  /** @param {Stream} stream @param {string} text */
  push(stream, text) {
    const rest = this.#fillHead(stream, text);
    if (rest) {
      const end = rest.slice(-MAX_CHARS);
      this.#tail.push({ stream, text: end });
      this.#tailChars += end.length;
      // One long piece loses its start here, where `#trimTail` would not see it.
      if (end.length < rest.length) this.#gap.textContent = GAP;
      this.#tailChanged = true;
      // Trimming at twice the bound keeps its cost in proportion to the output.
      if (this.#tail.length > 2 * MAX_PIECES || this.#tailChars > 2 * MAX_CHARS) this.#trimTail();
    }
    this.#timer ??= setTimeout(() => this.paint(), PAINT_MS);
  }

  /** Shows the output so far. */
  paint() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const pre = this.element;
    if (this.#head.length + this.#tail.length > 0) pre.hidden = false;
    const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 24;
    append(this.#headView, this.#head);
    this.#head = [];
    if (this.#tailChanged) {
      this.#tailChanged = false;
      this.#trimTail();
      this.#tailView.replaceChildren();
      append(this.#tailView, this.#tail);
    }
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  }

  /** Keeps the part that still fits into the beginning; returns the rest. @param {Stream} stream @param {string} text */
  #fillHead(stream, text) {
    const room = Math.min(this.#headChars, endOfLines(text, this.#headLines));
    const fits = this.#headPieces > 0 ? text.slice(0, room) : "";
    if (fits) {
      this.#headChars -= fits.length;
      this.#headLines -= fits.split("\n").length - 1;
      const last = this.#head.at(-1);
      if (last?.stream === stream) last.text += fits;
      else if (this.#head.push({ stream, text: fits })) this.#headPieces--;
    }
    // After the first text that did not fit, all output belongs to the end.
    if (fits.length < text.length) this.#headChars = 0;
    return text.slice(fits.length);
  }

  #trimTail() {
    let chars = MAX_CHARS;
    let lines = MAX_LINES;
    /** @type {Piece[]} */
    const kept = [];
    let cut = false;
    for (const { stream, text } of this.#tail.toReversed()) {
      if (kept.length === MAX_PIECES || chars <= 0 || lines <= 0) {
        cut = true;
        break;
      }
      const end = lastOf(text, chars, lines);
      cut ||= end.length < text.length;
      kept.unshift({ stream, text: end });
      chars -= end.length;
      lines -= end.split("\n").length - 1;
      if (cut) break;
    }
    if (cut) this.#gap.textContent = GAP;
    this.#tail = kept;
    this.#tailChars = MAX_CHARS - chars;
  }
}

/** The position after the first `lines` lines. @param {string} text @param {number} lines */
function endOfLines(text, lines) {
  let end = 0;
  for (; lines > 0; lines--) {
    const next = text.indexOf("\n", end);
    if (next < 0) return text.length;
    end = next + 1;
  }
  return end;
}

/** The last `lines` lines, of at most `chars` characters. @param {string} text @param {number} chars @param {number} lines */
function lastOf(text, chars, lines) {
  const least = Math.max(0, text.length - chars);
  let start = text.length;
  while (lines > 0 && start > least) {
    start = text.lastIndexOf("\n", start - 2) + 1;
    lines--;
  }
  return text.slice(Math.max(least, start));
}

/** @param {HTMLElement} view @param {Piece[]} pieces */
function append(view, pieces) {
  for (const { stream, text } of pieces) {
    const last = view.lastElementChild;
    if (last?.className === stream) last.append(text);
    else view.append(el("span", { class: stream, text }));
  }
}

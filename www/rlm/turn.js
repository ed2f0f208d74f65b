// One turn of a run: the model's reply, and its code. A folded turn costs one line.

import { el } from "../dom.js";
import { clip, count, time } from "../format.js";
import { BlockView, DraftView } from "./block.js";
import { segments } from "./reply.js";

/** @import { Run, Turn } from "./state.js" */

const MAX_REPLY_CHARS = 100_000;

/** The view of one turn, folded or unfolded. */
export class TurnView {
  #revision = 0;
  #status = "";
  #turn;
  #onRun;
  /** True once the reader has folded or unfolded the turn, which then stays as it is. */
  #setByReader = false;
  #isOver = false;
  /** @type {{ view: ProseView | DraftView | BlockView, kind: string }[]} */
  #parts = [];

  #gist = el("span", { class: "excerpt" });
  #facts = el("span", { class: "facts" });
  #notes = el("ul", { class: "turn-notes" });
  #content = el("div", { class: "turn-content" });
  #rejected = el("p", { class: "rejected", hidden: true });
  #details;
  element;

  /** @param {Turn} turn @param {{ onRun: (id: string) => void }} options */
  constructor(turn, { onRun }) {
    this.#turn = turn;
    this.#onRun = onRun;
    const name = turn.number > turn.of ? "Final turn" : `Turn ${turn.number}`;
    const summary = el(
      "summary",
      { onclick: () => (this.#setByReader = true) },
      el("span", { class: "turn-name", text: name }),
      this.#gist,
      this.#facts,
    );
    const body = el("div", { class: "turn-body" }, this.#notes, this.#content, this.#rejected);
    this.#details = el("details", { ontoggle: () => this.#draw() }, summary, body);
    this.element = el("li", { class: "turn" }, this.#details);
  }

  /** Folds or unfolds the turn, unless the reader has. @param {boolean} open */
  set open(open) {
    if (!this.#setByReader && this.#details.open !== open) this.#details.open = open;
  }

  /** @param {Run} run  the run of this turn */
  update(run) {
    const { revision } = this.#turn;
    if (revision === this.#revision && run.status === this.#status) return;
    this.#revision = revision;
    this.#status = run.status;
    this.#isOver = run.status !== "running" || run.turns.at(-1) !== this.#turn;
    const { status, text, usage, estimated, duration, blocks, cut } = this.#turn;
    this.element.dataset.state = this.#isOver ? "over" : status;
    this.#gist.textContent = gist(text);
    const facts = [];
    if (status === "asked") facts.push(this.#isOver ? "no reply" : text ? "writing …" : "asked …");
    if (usage)
      facts.push(`${estimated ? "≈ " : ""}${count((usage.inputTokens ?? 0) + (usage.outputTokens ?? 0), "token")}`);
    if (duration !== undefined) facts.push(time(duration));
    if (cut) facts.push("cut off");
    const calls = blocks.reduce((sum, { calls }) => sum + calls.length, 0);
    if (calls > 0) facts.push(count(calls, "call"));
    if (blocks.some(({ execution }) => execution && execution.outcome !== "ok")) facts.push("failed");
    this.#facts.textContent = facts.join(" · ");
    this.#draw();
  }

  #draw() {
    if (!this.#details.open) return;
    const { text, notes, blocks, rejected } = this.#turn;
    if (this.#notes.children.length !== notes.length) {
      this.#notes.replaceChildren(...notes.map((note) => el("li", { text: clip(note, 2_000) })));
    }
    const parts = segments(clip(text, MAX_REPLY_CHARS));
    let block = 0;
    parts.forEach((part, index) => {
      if (part.kind === "prose") this.#part(index, "prose", () => new ProseView()).update(part.text);
      else if (blocks[block]) this.#block(index, block++);
      else this.#part(index, "draft", () => new DraftView()).update(part.text);
    });
    // The controller parses replies by stricter rules, so there may be blocks that `segments` did not find.
    let end = parts.length;
    while (block < blocks.length) this.#block(end++, block++);
    while (this.#parts.length > end) this.#parts.pop()?.view.element.remove();
    this.#rejected.hidden = rejected === undefined;
    this.#rejected.textContent = rejected === undefined ? "" : `This answer was not accepted: ${clip(rejected, 4_000)}`;
  }

  /** @param {number} index @param {number} number */
  #block(index, number) {
    const block = this.#turn.blocks[number];
    if (!block) return;
    const view = this.#part(index, `block ${number}`, () => new BlockView(block, this.#onRun));
    view.update(block, this.#isOver);
  }

  /**
   * The view at a place. A view of another kind is replaced by a new one.
   * @template {ProseView | DraftView | BlockView} V
   * @param {number} index @param {string} kind @param {() => V} make
   * @returns {V}
   */
  #part(index, kind, make) {
    const there = this.#parts[index];
    if (there?.kind === kind) return /** @type {V} */ (there.view);
    const view = make();
    if (there) there.view.element.replaceWith(view.element);
    else this.#content.append(view.element);
    this.#parts[index] = { view, kind };
    return view;
  }
}

/** The view of prose. Growing text is appended to. */
class ProseView {
  #text = "";
  element = el("p", { class: "prose" });

  /** @param {string} text */
  update(text) {
    if (text === this.#text) return;
    if (text.startsWith(this.#text)) this.element.append(text.slice(this.#text.length));
    else this.element.textContent = text;
    this.#text = text;
  }
}

/** The first words of a reply. @param {string} text */
function gist(text) {
  const start = text.slice(0, 600).replace(/^\s*<think>[^]*?(<\/think>|$)/, "");
  return start.replace(/\s+/g, " ").trim().slice(0, 160);
}

// The final answer: in large letters, with a button that copies it, and in its typed form if a schema was given.

import { byId } from "../dom.js";
import { clip, count, time } from "../format.js";
import { STATUS } from "./tree.js";

/** @import { Run } from "./state.js" */

const MAX_CHARS = 100_000;

/** An answer as text. @param {unknown} answer */
export const answerText = (answer) => (typeof answer === "string" ? answer : JSON.stringify(answer, null, 2));

/** The card of the final answer, with its facts and a button that copies it. */
export class AnswerCard {
  #card = byId("answer");
  #title = byId("answer-title");
  #text = byId("answer-text");
  #facts = byId("answer-facts");
  #copy = byId("answer-copy");
  #whole = "";
  #shown = "";

  constructor() {
    this.#copy.addEventListener("click", () => void this.#toClipboard());
  }

  /** @param {Run | undefined} root */
  update(root) {
    const isOver = root && root.status !== "running" && root.status !== "waiting";
    this.#card.hidden = !isOver;
    if (!isOver) return void (this.#shown = "");
    const shown = JSON.stringify([root.status, root.answer, root.error]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    const has = root.answer !== undefined && root.answer !== null;
    this.#card.dataset.state = root.status;
    this.#title.textContent = has ? "Answer" : `No answer: ${STATUS[root.status]}`;
    this.#whole = has ? answerText(root.answer) : (root.error ?? "");
    this.#text.textContent = clip(this.#whole, MAX_CHARS);
    this.#text.classList.toggle("typed", has && root.answerSchema !== undefined);
    this.#text.classList.toggle("long", this.#whole.length > 240);
    this.#copy.hidden = !has;
    this.#copy.textContent = "Copy";
    const facts = [count(root.turns.length, "turn"), count(root.usage.calls, "call"), time(root.duration ?? 0)];
    if (has && root.answerSchema !== undefined) facts.unshift("valid under the schema");
    if (has && root.error) facts.push(root.error);
    this.#facts.textContent = facts.join(" · ");
  }

  async #toClipboard() {
    const said = await navigator.clipboard.writeText(this.#whole).then(
      () => "Copied",
      () => "Not allowed here",
    );
    this.#copy.textContent = said;
  }
}

// The sentence in the place of the answer while a run goes on: what happens right now.

import { byId } from "../dom.js";
import { STAGES, drawSteps } from "../python-status.js";

/** @import { Stage } from "../python-status.js" */
/** @import { State } from "./state.js" */

/** The stage of a run, until its answer is there. */
export class StageCard {
  #card = byId("run-stage");
  #text = byId("run-stage-text");
  #steps = byId("run-steps");
  /** The stage of Python's start, until the first event. @type {Stage | undefined} */
  #stage;
  #shown = "";

  /** Shows how far Python's start is. @param {Stage} stage */
  starting(stage) {
    this.#stage = stage;
    this.#show(`${capital(STAGES[stage])} …`, stage);
  }

  /** @param {State} state */
  update(state) {
    const { root } = state;
    if (state.isOver) {
      this.#shown = "";
      this.#stage = undefined;
      this.#card.hidden = true;
    } else if (root?.turns.length) {
      const turn = /** @type {import("./state.js").Turn} */ (root.turns.at(-1));
      const waiting = root.children.filter(({ status }) => status === "running" || status === "waiting").length;
      const now =
        turn.status === "asked"
          ? "the model writes code"
          : waiting > 0
            ? `Python waits for ${waiting} ${waiting === 1 ? "run" : "runs"} of its own`
            : "Python runs the code";
      this.#show(`Turn ${turn.number}: ${now} …`);
    } else if (this.#stage) this.starting(this.#stage);
    else this.#show("Starting …");
  }

  /** @param {string} text @param {Stage} [stage] */
  #show(text, stage) {
    this.#card.hidden = false;
    if (text === this.#shown) return;
    this.#text.textContent = this.#shown = text;
    drawSteps(this.#steps, stage);
  }
}

/** @param {string} text */
const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

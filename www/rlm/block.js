// One block of code in a turn: the code, its calls, its output and its result.

import { el } from "../dom.js";
import { time } from "../format.js";
import { Output } from "../output.js";
import { describeRun } from "../result.js";
import { CallsView } from "./calls.js";
import { showDisplays } from "../displays.js";
import { showPython } from "./highlight.js";

/** @import { Block } from "./state.js" */

/** The view of code that is still being written, or that has not started. */
export class DraftView {
  #text = "";
  #code = el("code");
  element = el("pre", { class: "code draft" }, this.#code);

  /** @param {string} text */
  update(text) {
    if (text !== this.#text) this.#code.textContent = this.#text = text;
  }
}

/** The view of a block that has started. */
export class BlockView {
  #revision = 0;
  #printed = 0;
  #ended = false;
  #onRun;
  /** @type {CallsView | undefined} */
  #calls;
  #code = el("code");
  #running = el("p", { class: "label running", text: "running …" });
  #output = new Output();
  #result = el("div", { class: "result" }, this.#output.element);
  element = el(
    "div",
    { class: "block", role: "group" },
    el("pre", { class: "code", tabindex: "0" }, this.#code),
    this.#running,
  );

  /** @param {Block} block @param {(id: string) => void} onRun */
  constructor(block, onRun) {
    this.#onRun = onRun;
    this.element.setAttribute("aria-label", `Code ${block.number}`);
    void showPython(this.#code, block.code);
  }

  /** @param {Block} block @param {boolean} isOver  true if nothing more can happen to the block */
  update(block, isOver) {
    this.#running.hidden = isOver || block.execution !== undefined;
    if (block.revision === this.#revision) return;
    this.#revision = block.revision;
    if (block.calls.length > 0) {
      if (!this.#calls) this.#running.before((this.#calls = new CallsView(this.#onRun)).element);
      this.#calls.update(block.calls);
    }
    if (this.#ended) return;
    for (const { stream, text } of block.live.slice(this.#printed)) this.#output.push(stream, text);
    if (block.live.length > this.#printed && !this.#result.parentNode) this.element.append(this.#result);
    this.#printed = block.live.length;
    if (block.execution) this.#end(block);
  }

  /** @param {Block} block */
  #end({ execution, live, declared }) {
    if (!execution) return;
    this.#ended = true;
    const { stdout, stderr } = execution;
    // Live output may be incomplete or in another order than the execution's.
    if (live.map(({ text }) => text).join("") !== stdout + stderr) {
      const whole = new Output();
      if (stdout) whole.push("stdout", stdout);
      if (stderr) whole.push("stderr", stderr);
      this.#output.element.replaceWith(whole.element);
      this.#output = whole;
    }
    this.#output.paint();
    // Older recordings have no `displays`.
    this.#result.append(...showDisplays(execution.displays ?? []), ...describeRun(execution));
    if (declared) {
      const text = `Declared the final answer after ${time(execution.duration)}.`;
      this.#result.append(el("p", { class: "declared", text }));
    }
    this.element.append(this.#result);
  }
}

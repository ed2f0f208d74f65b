// One cell of the notebook: its editor, its execution and its result.

import { el, icon } from "../dom.js";
import { createEditor } from "./editor.js";
import { time } from "../format.js";
import { Output } from "../output.js";
import { describeRun } from "../result.js";

/** @import { CodeExecution } from "../../pkg/sandglass.js" */
/** @import { Session } from "./session.js" */

/** Time between two readings of a running cell's clock. */
const TICK_MS = 100;

/**
 * @typedef {object} Surroundings
 * @property {Session} session
 * @property {() => number} timeout  milliseconds
 * @property {() => boolean} waitingForHost  true while Python waits for the page; the cell's clock stands still then
 * @property {(code: string) => void} onEdit
 * @property {(cell: Cell) => void} onRunAndAdd
 * @property {(cell: Cell) => void} onDelete
 */

/** A cell of the notebook. */
export class Cell {
  #around;
  /** @type {AbortController | undefined} */
  #abort;

  #count = el("span", { class: "count", text: "[ ]", title: "Number of its last run" });
  #button = el("button", { class: "run", onclick: () => (this.#abort ? this.stop() : this.run()) });
  #sand = el("div", { class: "sand" }, el("i"));
  #clock = el("p", { class: "clock", hidden: true });
  #result = el("div", { class: "result", hidden: true });
  #editor;

  element = el("section", { class: "cell" });

  /** @param {string} code @param {Surroundings} around */
  constructor(code, around) {
    this.#around = around;
    const parent = el("div", { class: "editor" });
    const remove = el("button", {
      class: "quiet delete",
      "aria-label": "Delete this cell",
      title: "Delete this cell",
      onclick: () => around.onDelete(this),
    });
    remove.append(icon("close"));
    this.element.append(
      el("div", { class: "gutter" }, this.#button, this.#count),
      el("div", { class: "paper" }, parent, this.#sand, this.#clock, this.#result),
      remove,
    );
    this.#editor = createEditor({
      parent,
      code,
      onEdit: () => around.onEdit(this.#editor.code()),
      onRun: () => void this.run(),
      onRunAndAdd: () => around.onRunAndAdd(this),
    });
    this.#show("idle");
  }

  /** @param {number} position */
  set position(position) {
    this.element.setAttribute("aria-label", `Cell ${position}`);
  }

  focus() {
    this.#editor.focus();
  }

  /** Stops the execution and removes the cell. */
  remove() {
    this.stop();
    this.#editor.destroy();
    this.element.remove();
  }

  stop() {
    this.#abort?.abort();
  }

  /** Runs the code; undefined if it could not run. @returns {Promise<CodeExecution | undefined>} */
  async run() {
    if (this.#abort) return;
    const abort = (this.#abort = new AbortController());
    const output = new Output();
    this.#result.replaceChildren(output.element);
    this.#result.hidden = false;
    this.#show("waiting");
    const timeout = this.#around.timeout();
    let stopClock = () => {};
    try {
      const run = await this.#around.session.run(this.#editor.code(), {
        timeout,
        signal: abort.signal,
        onStart: () => {
          this.#show("running");
          stopClock = this.#startClock(timeout);
        },
        onStdout: (text) => output.push("stdout", text),
        onStderr: (text) => output.push("stderr", text),
      });
      output.paint();
      this.#count.textContent = `[${run.id}]`;
      this.#result.append(...describeRun(run, timeout));
      return run;
    } catch (error) {
      output.paint();
      const message = error instanceof Error ? error.message : String(error);
      this.#result.append(el("p", { class: "not-run", text: `It did not finish: ${message}.` }));
    } finally {
      stopClock();
      this.#abort = undefined;
      this.#show("idle");
    }
  }

  /** Moves the sand as Python's time passes. @param {number} timeout */
  #startClock(timeout) {
    let last = performance.now();
    let spent = 0;
    const tick = () => {
      const now = performance.now();
      const waits = this.#around.waitingForHost();
      if (!waits) spent += now - last;
      last = now;
      this.#sand.style.setProperty("--spent", String(Math.min(1, spent / timeout)));
      const limit = `${time(spent)} of ${time(timeout)}`;
      this.#clock.textContent = waits
        ? `waiting for the model · Python's clock stands at ${limit}`
        : `running · ${limit}`;
    };
    const timer = setInterval(tick, TICK_MS);
    tick();
    return () => clearInterval(timer);
  }

  /** @param {"idle" | "waiting" | "running"} state */
  #show(state) {
    const idle = state === "idle";
    this.element.dataset.state = state;
    this.element.setAttribute("aria-busy", String(!idle));
    this.#clock.hidden = idle;
    this.#clock.textContent = "waiting for its turn";
    const label = idle ? "Run this cell" : "Stop this cell";
    this.#button.setAttribute("aria-label", label);
    this.#button.title = idle ? "Run (Ctrl+Enter)" : "Stop";
    this.#button.replaceChildren(icon(idle ? "run" : "stop"));
    if (idle) this.#sand.style.setProperty("--spent", "0");
  }
}

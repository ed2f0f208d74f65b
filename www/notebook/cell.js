// A cell with code: its editor, its execution and its result.

import { showDisplays } from "../displays.js";
import { el, icon } from "../dom.js";
import { preview, time } from "../format.js";
import { Output } from "../output.js";
import { describeRun } from "../result.js";
import { actionsOf } from "./cell-actions.js";
import { createEditor } from "./editor.js";
import { outputsOf } from "./ipynb.js";
import { showSaved } from "./saved-outputs.js";

/** @import { CodeExecution } from "../../pkg/sandglass.js" */
/** @import { AnyCell, CellEvents } from "./cell-actions.js" */
/** @import { CellRecord, Output as SavedOutput } from "./ipynb.js" */
/** @import { Session } from "./session.js" */

/** Time between two readings of a running cell's clock. */
const TICK_MS = 100;

/**
 * @typedef {object} Surroundings
 * @property {Session} session
 * @property {() => number} timeout  milliseconds
 * @property {() => boolean} waitingForHost  true while Python waits for the page; the cell's clock stands still then
 * @property {(code: string) => void} onEdit  code that is being written
 * @property {(run: CodeExecution, again: () => void) => HTMLElement | undefined} offer  help with an execution's error
 */

/** A cell with code. @implements {AnyCell} */
export class CodeCell {
  /** @type {"code"} */
  kind = "code";
  #around;
  /**
   * True for code that was written elsewhere, or in an earlier visit, and that the user has neither run nor changed here. It never
   * runs ahead.
   */
  #isFresh;
  /** The number that is shown, which may be an earlier visit's. @type {number | null} */
  #number;
  /** The session's number of the last run here. @type {number | undefined} */
  #run;
  /** @type {SavedOutput[]} */
  #outputs;
  /** @type {AbortController | undefined} */
  #abort;

  #count = el("span", { class: "count", title: "Number of its last run" });
  #button = el("button", { class: "run", onclick: () => (this.#abort ? this.stop() : this.run()) });
  #sand = el("div", { class: "sand" }, el("i"));
  #clock = el("p", { class: "clock", hidden: true });
  #result = el("div", { class: "result", hidden: true });
  #editor;

  element = el("section", { class: "cell code-cell" });

  /** @param {CellRecord} record @param {Surroundings & CellEvents} around */
  constructor({ source, count = null, outputs = [] }, around) {
    this.#around = around;
    this.#isFresh = source !== "";
    this.#number = count;
    this.#outputs = outputs;
    const parent = el("div", { class: "editor" });
    this.element.append(
      el("div", { class: "gutter" }, this.#button, this.#count),
      el("div", { class: "paper" }, parent, this.#sand, this.#clock, this.#result),
      actionsOf(this, around),
    );
    this.#editor = createEditor({
      parent,
      code: source,
      kind: "code",
      onEdit: (isChange) => {
        if (isChange) {
          this.#isFresh = false;
          around.onChange();
        }
        if (!this.#isFresh) around.onEdit(this.#editor.code());
      },
      onRun: () => void this.run(),
      onRunAndAdd: () => around.onRunAndAdd(this),
      onMove: (by) => around.onMove(this, by),
    });
    if (outputs.length > 0) {
      this.#result.append(...showSaved(outputs));
      this.#result.hidden = false;
    }
    this.#show("idle");
  }

  /** @returns {CellRecord} */
  get record() {
    return { kind: "code", source: this.#editor.code(), count: this.#number, outputs: this.#outputs };
  }

  /** Marks the cell if an undo took its last run back. @param {Set<number>} runs  the runs that are taken back */
  undone(runs) {
    if (this.#run === undefined || !runs.has(this.#run) || this.#result.querySelector(".undone")) return;
    this.#result.append(
      el("p", { class: "undone", text: "Undone: its effects on variables and files are taken back." }),
    );
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
    this.#isFresh = false;
    // Those of the run before are shown no longer, so they are not kept either.
    this.#number = null;
    this.#outputs = [];
    const output = new Output();
    const displays = el("div", { class: "displays" });
    this.#result.replaceChildren(output.element, displays);
    this.#result.hidden = false;
    this.#show("waiting");
    const timeout = this.#around.timeout();
    let stopClock = () => {};
    try {
      const run = await this.#around.session.run(this.#editor.code(), {
        timeout,
        signal: abort.signal,
        onStart: (number) => {
          this.#run = number;
          this.#show("running");
          stopClock = this.#startClock(timeout);
        },
        onStdout: (text) => output.push("stdout", text),
        onStderr: (text) => output.push("stderr", text),
      });
      output.paint();
      this.#number = run.id;
      this.#outputs = outputsOf(run, run.final && preview(run.final.value));
      displays.append(...showDisplays(run.displays, { open: true }));
      this.#result.append(...describeRun(run, timeout));
      const offer = this.#around.offer(run, () => void this.run());
      if (offer) this.#result.append(offer);
      return run;
    } catch (error) {
      output.paint();
      const message = error instanceof Error ? error.message : String(error);
      this.#result.append(el("p", { class: "not-run", text: `It did not finish: ${message}.` }));
    } finally {
      stopClock();
      this.#abort = undefined;
      this.#show("idle");
      this.#around.onChange();
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
    this.#count.textContent = `[${this.#number ?? " "}]`;
    this.#clock.hidden = idle;
    this.#clock.textContent = "waiting for its turn";
    const label = idle ? "Run this cell" : "Stop this cell";
    this.#button.setAttribute("aria-label", label);
    this.#button.title = idle ? "Run (Ctrl+Enter)" : "Stop";
    this.#button.replaceChildren(icon(idle ? "run" : "stop"));
    if (idle) this.#sand.style.setProperty("--spent", "0");
  }
}

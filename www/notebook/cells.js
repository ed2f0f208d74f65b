// The column of cells.

import { Cell } from "./cell.js";

/** @import { Surroundings } from "./cell.js" */

/** The cells in their order. */
export class Notebook {
  #list;
  #around;
  /** @type {Cell[]} */
  #cells = [];
  #runningAll = false;

  /** @param {HTMLElement} list @param {Omit<Surroundings, "onDelete" | "onRunAndAdd">} around */
  constructor(list, around) {
    this.#list = list;
    this.#around = {
      ...around,
      onDelete: (/** @type {Cell} */ cell) => this.#delete(cell),
      onRunAndAdd: (/** @type {Cell} */ cell) => this.#runAndAdd(cell),
    };
  }

  /** Adds a cell after another, or at the end. @param {string} [code] @param {Cell} [after] */
  add(code = "", after = this.#cells.at(-1)) {
    const cell = new Cell(code, this.#around);
    const index = after ? this.#cells.indexOf(after) + 1 : 0;
    this.#list.insertBefore(cell.element, this.#cells[index]?.element ?? null);
    this.#cells.splice(index, 0, cell);
    this.#number();
    return cell;
  }

  /** Runs the cells in order, up to the first that fails. */
  async runAll() {
    if (this.#runningAll) return;
    this.#runningAll = true;
    for (const cell of [...this.#cells]) {
      const run = await cell.run();
      if (run?.outcome !== "ok") break;
    }
    this.#runningAll = false;
  }

  /** Stops the running cell and those that wait for it. */
  stopAll() {
    for (const cell of this.#cells) cell.stop();
  }

  /** @param {Cell} cell */
  #runAndAdd(cell) {
    void cell.run();
    const next = this.#cells[this.#cells.indexOf(cell) + 1] ?? this.add("", cell);
    next.focus();
  }

  /** @param {Cell} cell */
  #delete(cell) {
    const index = this.#cells.indexOf(cell);
    this.#cells.splice(index, 1);
    cell.remove();
    if (this.#cells.length === 0) this.add();
    this.#number();
    this.#cells[Math.min(index, this.#cells.length - 1)]?.focus();
  }

  #number() {
    this.#cells.forEach((cell, index) => (cell.position = index + 1));
  }
}

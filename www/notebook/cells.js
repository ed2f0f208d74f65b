// The column of cells.

import { CodeCell } from "./cell.js";
import { MarkdownCell } from "./markdown-cell.js";

/** @import { Surroundings } from "./cell.js" */
/** @import { AnyCell, CellEvents } from "./cell-actions.js" */
/** @import { CellRecord } from "./ipynb.js" */

/** The cells in their order. */
export class Notebook {
  #list;
  /** @type {Surroundings & CellEvents} */
  #around;
  /** @type {AnyCell[]} */
  #cells = [];
  #runningAll = false;
  #onChange;

  /** @param {HTMLElement} list @param {Surroundings & { onChange: () => void }} around */
  constructor(list, around) {
    this.#list = list;
    this.#onChange = around.onChange;
    this.#around = {
      ...around,
      onDelete: (cell) => this.#delete(cell),
      onRunAndAdd: (cell) => this.#runAndAdd(cell),
      onAddBelow: (cell) => this.add({ kind: "code", source: "" }, cell).focus(),
      onConvert: (cell) => this.#convert(cell),
      onMove: (cell, by) => this.#move(cell, by),
    };
  }

  /** The cells as a notebook keeps them. */
  get records() {
    return this.#cells.map(({ record }) => record);
  }

  /** Adds a cell after another, or at the end. @param {CellRecord} [record] @param {AnyCell} [after] */
  add(record = { kind: "code", source: "" }, after = this.#cells.at(-1)) {
    const cell = record.kind === "code" ? new CodeCell(record, this.#around) : new MarkdownCell(record, this.#around);
    this.#insert(cell, after ? this.#cells.indexOf(after) + 1 : 0);
    return cell;
  }

  /** Replaces all cells. @param {CellRecord[]} records */
  replace(records) {
    for (const cell of this.#cells.splice(0)) cell.remove();
    for (const record of records) this.add(record);
    if (records.length === 0) this.add();
  }

  /** Runs the cells in order, up to the first that fails. */
  async runAll() {
    if (this.#runningAll) return;
    this.#runningAll = true;
    try {
      for (const cell of [...this.#cells]) {
        if (!this.#cells.includes(cell)) continue; // deleted or converted meanwhile
        const run = await cell.run();
        if (cell.kind === "code" && run?.outcome !== "ok") break;
      }
    } finally {
      this.#runningAll = false;
    }
  }

  /** Stops the running cell and those that wait for it. */
  stopAll() {
    for (const cell of this.#cells) cell.stop();
  }

  /** Marks the cells whose effects are undone. @param {Set<number>} runs  the runs that are taken back */
  undone(runs) {
    for (const cell of this.#cells) cell.undone(runs);
  }

  /** @param {AnyCell} cell @param {number} index */
  #insert(cell, index) {
    this.#list.insertBefore(cell.element, this.#cells[index]?.element ?? null);
    this.#cells.splice(index, 0, cell);
    this.#changed();
  }

  /** @param {AnyCell} cell */
  #runAndAdd(cell) {
    void cell.run();
    const next = this.#cells[this.#cells.indexOf(cell) + 1] ?? this.add(undefined, cell);
    next.focus();
  }

  /** @param {AnyCell} cell @param {-1 | 1} by */
  #move(cell, by) {
    const index = this.#cells.indexOf(cell);
    if (!this.#cells[index + by]) return;
    const focused = document.activeElement;
    this.#cells.splice(index, 1);
    this.#insert(cell, index + by);
    // An element that is moved loses the focus.
    if (focused instanceof HTMLElement && cell.element.contains(focused)) {
      if (focused.matches("button")) focused.focus();
      else cell.focus();
    }
    cell.element.scrollIntoView({ block: "nearest" });
  }

  /** @param {AnyCell} cell */
  #convert(cell) {
    const { kind, source } = cell.record;
    const index = this.#cells.indexOf(cell);
    this.#cells.splice(index, 1);
    cell.stop();
    cell.remove();
    const record = { kind: /** @type {CellRecord["kind"]} */ (kind === "code" ? "markdown" : "code"), source };
    const made = record.kind === "code" ? new CodeCell(record, this.#around) : new MarkdownCell(record, this.#around);
    this.#insert(made, index);
    made.focus();
  }

  /** @param {AnyCell} cell */
  #delete(cell) {
    const index = this.#cells.indexOf(cell);
    this.#cells.splice(index, 1);
    cell.remove();
    if (this.#cells.length === 0) this.add();
    this.#changed();
    this.#cells[Math.min(index, this.#cells.length - 1)]?.focus();
  }

  #changed() {
    this.#cells.forEach((cell, index) => (cell.position = index + 1));
    this.#onChange();
  }
}

// The buttons at a cell's corner: move it, change its kind, add another below, delete it.

import { el, icon } from "../dom.js";

/** @import { CodeExecution } from "../../pkg/sandglass.js" */
/** @import { CellRecord } from "./ipynb.js" */

/**
 * @typedef {object} AnyCell  a cell with code or with text
 * @property {"code" | "markdown"} kind
 * @property {HTMLElement} element
 * @property {CellRecord} record
 * @property {number} position  from 1
 * @property {() => void} focus
 * @property {() => void} stop
 * @property {() => void} remove
 * @property {() => Promise<CodeExecution | undefined>} run
 * @property {(runs: Set<number>) => void} undone
 */

/**
 * @typedef {object} CellEvents
 * @property {() => void} onChange  the cell's text or outputs have changed
 * @property {(cell: AnyCell) => void} onRunAndAdd
 * @property {(cell: AnyCell, by: -1 | 1) => void} onMove
 * @property {(cell: AnyCell) => void} onConvert
 * @property {(cell: AnyCell) => void} onAddBelow
 * @property {(cell: AnyCell) => void} onDelete
 */

/** @param {AnyCell} cell @param {CellEvents} events */
export function actionsOf(cell, events) {
  const other = cell.kind === "code" ? "Markdown" : "Python";
  /** @type {[string, string, () => void][]} */
  const actions = [
    ["up", "Move this cell up", () => events.onMove(cell, -1)],
    ["down", "Move this cell down", () => events.onMove(cell, 1)],
    ["add", "Add a cell below", () => events.onAddBelow(cell)],
    [cell.kind === "code" ? "text" : "code", `Make this a ${other} cell`, () => events.onConvert(cell)],
    ["close", "Delete this cell", () => events.onDelete(cell)],
  ];
  const buttons = actions.map(([name, label, act]) => {
    const button = el("button", { class: `quiet to-${name}`, "aria-label": label, title: label, onclick: act });
    button.append(icon(name));
    return button;
  });
  return el("div", { class: "cell-actions", role: "group", "aria-label": "Cell" }, ...buttons);
}

// Notebooks as text: Jupyter's `.ipynb` (nbformat 4.5). This one form is what the browser keeps, what a file holds, and, without
// outputs, what a link holds. A text that is read may come from anyone, so all of it is bounded and checked.

/** @import { CodeExecution } from "../../pkg/sandglass.js" */

/**
 * @typedef {{ output_type: "stream", name: "stdout" | "stderr", text: string }
 *   | { output_type: "display_data", data: Record<string, string>, metadata: { sandglass?: "final" } }
 *   | { output_type: "execute_result", execution_count: number | null, data: Record<string, string>, metadata: {} }
 *   | { output_type: "error", ename: string, evalue: string, traceback: string[] }} Output
 */

/**
 * @typedef {object} CellRecord
 * @property {"code" | "markdown"} kind
 * @property {string} source
 * @property {number | null} [count]  the number of the cell's last run
 * @property {Output[]} [outputs]
 */

/** Bounds of a notebook that is read. */
const MAX_CELLS = 1_000;
const MAX_SOURCE = 1_000_000;
const MAX_OUTPUTS = 100;
const MAX_TEXT = 100_000;
const MAX_DATA = 12_000_000;
/** The kinds of data that the page shows, the richest first. */
const MIMES = ["text/html", "image/png", "image/jpeg", "image/svg+xml", "text/plain"];

/** A notebook as text. @param {CellRecord[]} cells @param {{ indent?: number }} [options] */
export function writeNotebook(cells, { indent } = {}) {
  const metadata = {
    kernelspec: { name: "python3", display_name: "Python 3", language: "python" },
    language_info: { name: "python" },
  };
  const written = cells.map(({ kind, source, count, outputs }, index) => {
    const common = { id: `cell-${index + 1}`, cell_type: kind, metadata: {}, source };
    return kind === "code" ? { ...common, execution_count: count ?? null, outputs: outputs ?? [] } : common;
  });
  return JSON.stringify({ cells: written, metadata, nbformat: 4, nbformat_minor: 5 }, null, indent);
}

/** Reads a notebook. Throws an error that says what is wrong with the text. @param {string} text @returns {CellRecord[]} */
export function readNotebook(text) {
  /** @type {any} */
  let notebook;
  try {
    notebook = JSON.parse(text);
  } catch {
    throw new Error("it is not a notebook: it is not JSON");
  }
  if (!Array.isArray(notebook?.cells) || !Number.isInteger(notebook.nbformat)) {
    const isOld = Array.isArray(notebook?.worksheets);
    throw new Error(
      isOld ? "its format is too old: save it again with Jupyter" : "it is not a notebook: it has no cells",
    );
  }
  if (notebook.nbformat !== 4)
    throw new Error(`its format is version ${notebook.nbformat}, and this page reads version 4`);
  const cells = notebook.cells.slice(0, MAX_CELLS + 1).map(readCell);
  const why = tooMuch(cells);
  if (why) throw new Error(why);
  return cells;
}

/** The reason for which a notebook of these cells is not read, if there is one. @param {CellRecord[]} cells */
export function tooMuch(cells) {
  if (cells.length > MAX_CELLS) return `it has more than ${MAX_CELLS.toLocaleString("en")} cells`;
  const long = cells.findIndex(({ source }) => source.length > MAX_SOURCE);
  return long < 0 ? undefined : `cell ${long + 1} has more than a million characters`;
}

/** @param {any} cell @param {number} index @returns {CellRecord} */
function readCell(cell, index) {
  const source = joined(cell?.source);
  if (source === undefined) throw new Error(`cell ${index + 1} has no source`);
  if (cell.cell_type !== "code") return { kind: "markdown", source };
  const more = (/** @type {string} */ text) => ({ output_type: "stream", name: "stderr", text });
  const outputs = Array.isArray(cell.outputs) ? first(cell.outputs, more) : [];
  return { kind: "code", source, count: counted(cell.execution_count), outputs: outputs.flatMap(readOutput) };
}

/** @param {any} output @returns {Output[]} */
function readOutput(output) {
  switch (output?.output_type) {
    case "stream": {
      const text = bounded(joined(output.text) ?? "");
      return text ? [{ output_type: "stream", name: output.name === "stderr" ? "stderr" : "stdout", text }] : [];
    }
    case "display_data": {
      const metadata = output.metadata?.sandglass === "final" ? { sandglass: /** @type {const} */ ("final") } : {};
      return [{ output_type: "display_data", data: readData(output.data), metadata }];
    }
    case "execute_result": {
      const count = counted(output.execution_count);
      return [{ output_type: "execute_result", execution_count: count, data: readData(output.data), metadata: {} }];
    }
    case "error": {
      const lines = Array.isArray(output.traceback) ? first(output.traceback, (text) => text) : [];
      const traceback = lines.map(plain);
      return [{ output_type: "error", ename: plain(output.ename), evalue: plain(output.evalue), traceback }];
    }
    default:
      return [];
  }
}

/** @param {any} data @returns {Record<string, string>} */
function readData(data) {
  /** @type {Record<string, string>} */
  const read = {};
  for (const mime of MIMES) {
    const text = data && Object.hasOwn(data, mime) ? joined(data[mime]) : undefined;
    if (text !== undefined && text.length <= MAX_DATA) read[mime] = text;
  }
  return read;
}

/** A text that may be a list of its lines. @param {unknown} text @returns {string | undefined} */
function joined(text) {
  if (typeof text === "string") return text;
  return Array.isArray(text) && text.every((line) => typeof line === "string") ? text.join("") : undefined;
}

/** A text without a terminal's colours. @param {unknown} text */
function plain(text) {
  return typeof text === "string" ? bounded(text).replace(/\x1b\[[\d;]*m/g, "") : "";
}

/**
 * At most `MAX_OUTPUTS` parts, of which the last says how many more there were.
 * @param {unknown[]} parts @param {(text: string) => unknown} say  makes a part of a sentence
 */
function first(parts, say) {
  if (parts.length <= MAX_OUTPUTS) return parts;
  const kept = parts.slice(0, MAX_OUTPUTS - 1);
  return [...kept, say(`⋯ ${(parts.length - kept.length).toLocaleString("en")} more are not kept ⋯`)];
}

/** A text of at most `MAX_TEXT` characters, which says how much of a longer one is left out. @param {string} text */
function bounded(text) {
  if (text.length <= MAX_TEXT) return text;
  const kept = text.slice(0, MAX_TEXT - 100); // with room for the sentence
  return `${kept}\n⋯ ${(text.length - kept.length).toLocaleString("en")} more characters are not kept ⋯\n`;
}

/** @param {unknown} count */
const counted = (count) => (Number.isSafeInteger(count) ? Number(count) : null);

/** The outputs of an execution, as a notebook keeps them. @param {CodeExecution} run @param {string} [final]  its final answer */
export function outputsOf(run, final) {
  /** @type {Output[]} */
  const outputs = [];
  for (const name of /** @type {const} */ (["stdout", "stderr"])) {
    if (run[name]) outputs.push({ output_type: "stream", name, text: run[name] });
  }
  // With room for the two streams, the value, the answer and the error.
  for (const { mime, data } of run.displays.slice(0, MAX_OUTPUTS - 5)) {
    outputs.push({ output_type: "display_data", data: { [mime]: data }, metadata: {} });
  }
  if (run.result !== undefined) {
    const data = { "text/plain": run.result };
    outputs.push({ output_type: "execute_result", execution_count: run.id, data, metadata: {} });
  }
  if (final !== undefined) {
    outputs.push({ output_type: "display_data", data: { "text/plain": final }, metadata: { sandglass: "final" } });
  }
  if (run.error !== undefined) {
    const [, ename = "Error", evalue = ""] = /^([\w.]{1,200})(?:: ([^]*))?$/.exec(run.error) ?? [, "Error", run.error];
    const traceback = run.traceback ? run.traceback.split("\n") : [run.error];
    outputs.push({ output_type: "error", ename, evalue, traceback });
  }
  return outputs;
}

/** The form of an output's data that the page shows. @param {Record<string, string>} data */
export function richest(data) {
  const mime = MIMES.find((known) => Object.hasOwn(data, known));
  return mime && { mime, data: /** @type {string} */ (data[mime]) };
}

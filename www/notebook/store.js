// The notebook that the browser keeps, so that a reload loses no cell. Only one tab writes it.

import { readNotebook, tooMuch, writeNotebook } from "./ipynb.js";

/** @import { CellRecord, Output } from "./ipynb.js" */

const KEY = "sandglass.notebook";
/** A copy of a notebook that could not be read. */
const UNREAD_KEY = "sandglass.notebook.unread";
/** Length of a notebook that is kept. Browsers keep about five million characters for a site. */
const MAX_CHARS = 2_000_000;
/** Time without a change after which the cells are saved. */
const PAUSE_MS = 400;
/** Lengths of cells' outputs as text. @type {WeakMap<Output[], number>} */
const lengths = new WeakMap();

/** Keeps the cells in `localStorage`. Dispatches `change` when `status` does. */
export class Store extends EventTarget {
  #records;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #pause;
  /** True if the cells have changed since they were saved. */
  #isChanged = false;
  /** The reason for which this tab does not write, if it does not. @type {string | undefined} */
  #refusal = "Not saved: the notebook is open in another tab";
  /** The text that was last read or written here. @type {string | null} */
  #known = null;

  /** A sentence about the cells: saved, or not and why. */
  status = "";
  isSaved = true;

  /** @param {() => CellRecord[]} records  the cells as they are now */
  constructor(records) {
    super();
    this.#records = records;
    addEventListener("pagehide", () => this.flush());
    // On a phone, a page that is hidden may be ended without another event.
    document.addEventListener("visibilitychange", () => document.hidden && this.flush());
  }

  /** The cells that were kept, if there are any. */
  load() {
    try {
      this.#known = localStorage.getItem(KEY);
    } catch {
      this.#refuse("Not saved: this browser keeps nothing for this page");
      return undefined;
    }
    /** @type {CellRecord[] | undefined} */
    let cells;
    try {
      if (this.#known !== null) cells = readNotebook(this.#known);
    } catch (error) {
      const why = `The saved cells cannot be read: ${/** @type {Error} */ (error).message}`;
      if (!this.#keepUnread(why)) return undefined;
    }
    this.#claim();
    return cells;
  }

  /** Saves the cells soon. */
  changed() {
    clearTimeout(this.#pause);
    this.#isChanged = true;
    this.#pause = setTimeout(() => this.flush(), PAUSE_MS);
  }

  /** Saves the cells now, if they have changed. */
  flush() {
    if (!this.#isChanged) return;
    clearTimeout(this.#pause);
    if (this.#refusal) return this.#become(this.#refusal, false);
    const records = this.#records();
    const why = tooMuch(records);
    if (why) return this.#become(`Not saved: it could not be read again, since ${why}. Save it as a file`, false);
    const { text, left } = fitting(records);
    if (text === undefined) {
      return this.#become("Not saved: the cells are too long for this browser's store. Save them as a file", false);
    }
    try {
      localStorage.setItem(KEY, (this.#known = text));
    } catch {
      return this.#become("Not saved: this browser has no room for the cells. Save them as a file", false);
    }
    this.#isChanged = false;
    const without = left > 0 ? `, without the outputs of ${left} cell${left === 1 ? "" : "s"}: too large` : "";
    this.#become(`Saved in this browser${without}`, true);
  }

  /** Becomes the tab that writes, at once or when another one is closed. */
  #claim() {
    if (!navigator.locks) return void (this.#refusal = undefined);
    void navigator.locks.request(KEY, () => {
      // The other tab may have saved cells that this one has never seen: those are kept.
      if (localStorage.getItem(KEY) !== this.#known) {
        this.#refuse("Not saved: another tab has saved other cells. Save these as a file, or reload to see those");
        return;
      }
      this.#refusal = undefined;
      this.flush();
      return new Promise(() => {}); // held until the page goes
    });
  }

  /** Copies the text that could not be read, since the next change of a cell replaces it. False if that fails. @param {string} why */
  #keepUnread(why) {
    try {
      localStorage.setItem(UNREAD_KEY, String(this.#known));
    } catch {
      this.#refuse(`Not saved: there is no room for a copy of the saved cells. ${why}. Save these as a file`);
      return false;
    }
    this.#become(`${why}. They are kept in this page's local storage, as ${UNREAD_KEY}`, false);
    return true;
  }

  /** @param {string} why */
  #refuse(why) {
    this.#refusal = why;
    this.#become(why, false);
  }

  /** @param {string} status @param {boolean} isSaved */
  #become(status, isSaved) {
    this.status = status;
    this.isSaved = isSaved;
    this.dispatchEvent(new Event("change"));
  }
}

/**
 * The notebook's text, without the largest outputs if it would be too long.
 * @param {CellRecord[]} cells
 * @returns {{ text: string | undefined, left: number }} `left`: the number of cells whose outputs are left out
 */
function fitting(cells) {
  const bare = cells.map((cell) => ({ ...cell, outputs: [] }));
  const sizes = cells.map(({ outputs }) => (outputs ? lengthOf(outputs) : 0));
  const largest = sizes.map((_, index) => index).sort((a, b) => Number(sizes[b]) - Number(sizes[a]));
  let length = sizes.reduce((sum, size) => sum + size, writeNotebook(bare).length);
  let left = 0;
  while (length > MAX_CHARS && left < largest.length) length -= Number(sizes[Number(largest[left++])]);
  if (length > MAX_CHARS) return { text: undefined, left };
  const without = new Set(largest.slice(0, left));
  return { text: writeNotebook(cells.map((cell, index) => (without.has(index) ? (bare[index] ?? cell) : cell))), left };
}

/** The length that outputs add to a notebook's text. Outputs never change, so each is measured once. @param {Output[]} outputs */
function lengthOf(outputs) {
  const known = lengths.get(outputs);
  if (known !== undefined) return known;
  const length = JSON.stringify(outputs).length - "[]".length;
  lengths.set(outputs, length);
  return length;
}

// The notebook that the browser keeps, so that a reload loses no cell. Only one tab writes it.

import { readNotebook, writeNotebook } from "./ipynb.js";

/** @import { CellRecord } from "./ipynb.js" */

const KEY = "sandglass.notebook";
/** Length of a notebook that is kept. Browsers keep about five million characters for a site. */
const MAX_CHARS = 2_000_000;
/** Time without a change after which the cells are saved. */
const PAUSE_MS = 400;
const ELSEWHERE = "Not saved: the notebook is open in another tab";

/** Keeps the cells in `localStorage`. Dispatches `change` when `status` does. */
export class Store extends EventTarget {
  #records;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #pause;
  /** True if this tab writes. */
  #isWriter = false;
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
    this.#claim();
    try {
      this.#known = localStorage.getItem(KEY);
    } catch {
      this.#become("Not saved: this browser keeps nothing for this page", false);
      return undefined;
    }
    if (this.#known === null) return undefined;
    try {
      return readNotebook(this.#known);
    } catch (error) {
      const why = /** @type {Error} */ (error).message;
      try {
        localStorage.setItem(`${KEY}.unread`, this.#known); // the next change replaces the other text
      } catch {
        // there is no room for a copy
      }
      this.#become(`The saved cells cannot be read: ${why}`, false);
      return undefined;
    }
  }

  /** Saves the cells soon. */
  changed() {
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => this.flush(), PAUSE_MS);
  }

  /** Saves the cells now, if they have changed. */
  flush() {
    if (this.#pause === undefined) return;
    clearTimeout(this.#pause);
    this.#pause = undefined;
    if (!this.#isWriter) return this.#become(ELSEWHERE, false);
    const { text, left } = fitting(this.#records());
    if (text === undefined) {
      return this.#become("Not saved: the cells are too long for this browser's store. Save them as a file", false);
    }
    try {
      localStorage.setItem(KEY, (this.#known = text));
    } catch {
      return this.#become("Not saved: this browser has no room for the cells. Save them as a file", false);
    }
    const without = left > 0 ? `, without the outputs of ${left} cell${left === 1 ? "" : "s"}: too large` : "";
    this.#become(`Saved in this browser${without}`, true);
  }

  /** Becomes the tab that writes, at once or when another one is closed. */
  #claim() {
    if (!navigator.locks) return void (this.#isWriter = true);
    let waited = false;
    void navigator.locks.request(KEY, () => {
      // The other tab may have saved cells that this one has never seen: those are kept.
      if (waited && stored() !== this.#known) {
        this.#become(
          "Not saved: another tab has saved other cells. Save these as a file, or reload to see those",
          false,
        );
        return;
      }
      this.#isWriter = true;
      if (waited) this.changed(); // what was changed here meanwhile
      return new Promise(() => {}); // held until the page goes
    });
    setTimeout(() => (waited = !this.#isWriter));
  }

  /** @param {string} status @param {boolean} isSaved */
  #become(status, isSaved) {
    this.status = status;
    this.isSaved = isSaved;
    this.dispatchEvent(new Event("change"));
  }
}

/** The saved text; null where there is none, or the browser keeps nothing. */
function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

/**
 * The notebook's text, without the largest outputs if it would be too long.
 * @param {CellRecord[]} cells
 * @returns {{ text: string | undefined, left: number }} `left`: the number of cells whose outputs are left out
 */
function fitting(cells) {
  const kept = [...cells];
  const sizes = cells.map(({ outputs }) => JSON.stringify(outputs ?? []).length);
  const largest = sizes.map((_, index) => index).sort((a, b) => Number(sizes[b]) - Number(sizes[a]));
  let text = writeNotebook(kept);
  let size = text.length;
  let left = 0;
  while (size > MAX_CHARS && left < largest.length) {
    const index = Number(largest[left++]);
    kept[index] = { .../** @type {CellRecord} */ (kept[index]), outputs: [] };
    size -= Number(sizes[index]);
    // The sizes are rough, so the text is written again once it may be short enough.
    if (size <= MAX_CHARS || left === largest.length) size = (text = writeNotebook(kept)).length;
  }
  return text.length > MAX_CHARS ? { text: undefined, left } : { text, left };
}

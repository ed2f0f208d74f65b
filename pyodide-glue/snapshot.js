// The memory that guests start from, as a `Blob`: what Pyodide makes of a Python that has imported the runtime and much of
// the standard library, then the hashes of its pages, which take up a page.

import { HASH_WORDS, PAGE, hashPages } from "./checkpoint.js";

/**
 * @typedef {object} Image
 * @property {Uint8Array} pyodide  what Pyodide made: a header, then the memory
 * @property {number} start  where the memory begins
 * @property {Int32Array} hashes
 */

/** @param {any} pyodide  started with `_makeSnapshot`. No reference to a JavaScript object may be in its memory. */
export function makeSnapshot(pyodide) {
  const image = /** @type {Uint8Array<ArrayBuffer>} */ (pyodide.makeMemorySnapshot());
  const start = new Uint32Array(image.buffer, 0, 2)[1];
  const words = new Int32Array(image.buffer, start);
  const hashes = new Int32Array(PAGE / 4);
  const pages = words.byteLength / PAGE;
  if (start >= PAGE || pages * HASH_WORDS > hashes.length) throw new Error("the memory is too large for a snapshot");
  hashPages(words, hashes, 0, pages);
  return new Blob([image, hashes]);
}

/**
 * The parts of a snapshot; undefined when it is not as it was made.
 * @param {Blob} snapshot
 * @param {boolean} proven  whether a guest has started from it before
 * @returns {Promise<Image | undefined>}
 */
export async function readSnapshot(snapshot, proven) {
  const whole = await snapshot.arrayBuffer();
  const [start, end] = [whole.byteLength % PAGE, whole.byteLength - PAGE];
  if (end < PAGE || start % 4) return undefined;
  const pages = (end - start) / PAGE;
  const hashes = new Int32Array(whole.slice(end, end + pages * HASH_WORDS * 4));
  if (!proven) {
    const found = new Int32Array(hashes.length);
    hashPages(new Int32Array(whole, start, (end - start) / 4), found, 0, pages);
    if (!found.every((word, index) => word === hashes[index])) return undefined;
  }
  return { pyodide: new Uint8Array(whole, 0, end), start, hashes };
}

/** The memory in a snapshot. @param {Blob} snapshot */
export const memoryOf = (snapshot) => snapshot.slice(snapshot.size % PAGE, snapshot.size - PAGE);

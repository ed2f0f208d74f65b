// The memory that guests start from, as a `Blob`: what Pyodide makes of a Python that has imported the runtime and much of
// the standard library, then the hashes of its pages, which take up a page.

import { PAGE } from "./checkpoint.js";
import hasher from "./pages.wat";

/**
 * @typedef {object} Image
 * @property {Uint8Array} pyodide  what Pyodide made: a header, then the memory
 * @property {number} start  where the memory begins
 * @property {BigInt64Array} hashes
 */

const hashing = new WebAssembly.Module(hasher);

/** How the pages of a memory are hashed. @param {WebAssembly.Memory} memory */
export function createHash(memory) {
  const { exports } = new WebAssembly.Instance(hashing, { env: { memory } });
  return /** @type {(page: number) => bigint} */ (exports.hash);
}

/**
 * @param {any} pyodide  started with `_makeSnapshot`. No reference to a JavaScript object may be in its memory.
 * @param {(page: number) => bigint} hash
 */
export function makeSnapshot(pyodide, hash) {
  const image = /** @type {Uint8Array<ArrayBuffer>} */ (pyodide.makeMemorySnapshot());
  const start = new Uint32Array(image.buffer, 0, 2)[1];
  const hashes = new BigInt64Array(PAGE / 8);
  const pages = (image.length - start) / PAGE;
  if (start >= PAGE || pages > hashes.length) throw new Error("the memory is too large for a snapshot");
  for (let page = 0; page < pages; page++) hashes[page] = hash(page);
  return new Blob([image, hashes]);
}

/**
 * The parts of a snapshot; undefined when it cannot be one.
 * @param {Blob} snapshot
 * @returns {Promise<Image | undefined>}
 */
export async function readSnapshot(snapshot) {
  const whole = await snapshot.arrayBuffer();
  const [start, end] = [whole.byteLength % PAGE, whole.byteLength - PAGE];
  if (end < PAGE || start % 4) return undefined;
  const hashes = new BigInt64Array(whole.slice(end, end + ((end - start) / PAGE) * 8));
  return { pyodide: new Uint8Array(whole, 0, end), start, hashes };
}

/** Whether the memory is as it was when its snapshot was made. @param {Image} image @param {(page: number) => bigint} hash */
export const isIntact = ({ hashes }, hash) => hashes.every((known, page) => hash(page) === known);

/** The memory in a snapshot. @param {Blob} snapshot */
export const memoryOf = (snapshot) => snapshot.slice(snapshot.size % PAGE, snapshot.size - PAGE);

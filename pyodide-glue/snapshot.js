// The snapshot: the memory that guests start from, as a `Blob`. It is the memory of a Python that has imported the
// runtime and much of the standard library. Pages of zeros are left out.
//
// Layout: three 64-bit floats, little-endian (the hash of the head, the length of the head's first part in bytes, the
// number of pages); the head; the pages. The head's first part describes Pyodide's references to JavaScript, as JSON
// padded with spaces. Its second part has the hashes of all pages of the memory, as 64-bit floats, with 0 for a page of
// zeros.
// Decisions: docs/internals/guest-in-a-browser.md and docs/internals/saving-and-restoring.md.

import { PAGE, PREFIX } from "./packing.js";
import hasher from "./pages.wat";

export { PAGE, unpackSnapshot } from "./packing.js";

/**
 * @typedef {object} Image
 * @property {string} name  identifies this snapshot
 * @property {number} size  the size of the memory in bytes
 * @property {Float64Array} hashes
 * @property {any} references
 * @property {Uint8Array} pages
 */
/** Hashes `bytes` bytes, a multiple of 64, at an address. @typedef {(at: number, bytes: number) => number} Hash */

// Taken before any guest code runs: lockDown removes them.
const { Blob, Float64Array, Uint8Array } = self;
/** The most bytes of a head. */
const MAX_HEAD = 1 << 20;
const hashing = new WebAssembly.Module(hasher);

/** Makes the function that hashes a memory. @param {WebAssembly.Memory} memory */
export function createHash(memory) {
  const { exports } = new WebAssembly.Instance(hashing, { env: { memory } });
  return /** @type {Hash} */ (exports.hash);
}

/** @param {Uint8Array} head */
function hashHead(head) {
  const memory = new WebAssembly.Memory({ initial: MAX_HEAD / 65536 });
  new Uint8Array(memory.buffer).set(head);
  return createHash(memory)(0, Math.ceil(head.length / 64) * 64);
}

/**
 * Fills free memory with zeros, so that snapshots and guests need not hold it.
 * @param {any} pyodide
 * @param {(fixed: boolean) => void} fixSize  keeps the memory from growing
 */
export function cleanFreeMemory({ _module: module }, fixSize) {
  /** @type {number[]} */
  const held = [];
  fixSize(true);
  for (let size = 1 << 20; size >= 64;) {
    const address = module._malloc(size);
    if (address) {
      module.HEAPU8.fill(0, address, address + size);
      held.push(address);
    } else size /= 4;
  }
  for (const address of held) module._free(address);
  fixSize(false);
}

/**
 * @param {any} pyodide  started with `_makeSnapshot`. No reference to a JavaScript object may be in its memory.
 * @param {Hash} hash
 */
export function makeSnapshot({ _module: { HEAPU8 }, _api }, hash) {
  const hashes = Float64Array.from({ length: HEAPU8.length / PAGE }, (_, page) => hash(page * PAGE, PAGE));
  const text = new TextEncoder().encode(JSON.stringify(_api.serializeHiwireState()));
  const size = Math.ceil(text.length / 8) * 8;
  const head = new Uint8Array(size + hashes.byteLength).fill(32, 0, size);
  if (head.length > MAX_HEAD) throw new Error("the memory is too large for a snapshot");
  head.set(text);
  head.set(new Uint8Array(hashes.buffer), size);
  /** @type {Uint8Array[]} */
  const pages = [];
  forRuns(hashes, (first, end) => pages.push(HEAPU8.subarray(first * PAGE, end * PAGE)));
  return new Blob([
    new Float64Array([hashHead(head), size, hashes.length]),
    head,
    .../** @type {BlobPart[]} */ (pages),
  ]);
}

/**
 * Reads the parts of a snapshot. Returns undefined when the head is damaged; the pages are not checked.
 * @param {ArrayBuffer} whole
 * @returns {Image | undefined}
 */
export function readSnapshot(whole) {
  if (whole.byteLength < PREFIX) return undefined;
  const [known, size, count] = new Float64Array(whole, 0, 3);
  const length = size + 8 * count;
  if (!(size % 8 === 0 && count >= 0 && length <= Math.min(MAX_HEAD, whole.byteLength - PREFIX))) return undefined;
  const head = new Uint8Array(whole, PREFIX, length);
  if (hashHead(head) !== known) return undefined;
  const hashes = new Float64Array(whole.slice(PREFIX + size, PREFIX + length));
  const pages = new Uint8Array(whole, PREFIX + length);
  if (pages.length !== hashes.filter((hash) => hash !== 0).length * PAGE) return undefined;
  const references = JSON.parse(new TextDecoder().decode(head.subarray(0, size)));
  return { name: `${count}:${known}`, size: count * PAGE, hashes, references, pages };
}

/**
 * Copies a snapshot into fresh memory.
 * @param {Image} image
 * @param {Uint8Array} memory
 * @param {number} used  the bytes of it in which something may have been written
 * @param {Hash} hash
 */
export function copySnapshot({ hashes, pages }, memory, used, hash) {
  let at = 0;
  let zeros = 0;
  const clear = (/** @type {number} */ end) => {
    // Zeros stay untouched, so that the browser need not provide memory for them.
    for (; zeros < end && zeros * PAGE < used; zeros++)
      if (hash(zeros * PAGE, PAGE)) memory.fill(0, zeros * PAGE, (zeros + 1) * PAGE);
  };
  forRuns(hashes, (first, end) => {
    clear(first);
    memory.set(pages.subarray(at, (at += (end - first) * PAGE)), first * PAGE);
    zeros = end;
  });
  clear(hashes.length);
}

/** Returns true when the copied pages are as they were when the snapshot was made. @param {Image} image @param {Hash} hash */
export const isIntact = ({ hashes }, hash) =>
  hashes.every((known, page) => known === 0 || hash(page * PAGE, PAGE) === known);

/**
 * Reads some pages of a snapshot's memory, one after the other.
 * @param {Blob} snapshot
 * @param {Float64Array} hashes
 * @param {number[]} wanted  in their order
 */
export async function readPages(snapshot, hashes, wanted) {
  const zeros = new Uint8Array(PAGE);
  /** @type {BlobPart[]} */
  const parts = [];
  let start = snapshot.size - hashes.filter((hash) => hash !== 0).length * PAGE;
  let page = 0;
  for (const next of wanted) {
    for (; page < next; page++) if (hashes[page]) start += PAGE;
    parts.push(hashes[page] ? snapshot.slice(start, start + PAGE) : zeros);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/**
 * Calls `tell` for each run of pages that are not zero.
 * @param {Float64Array} hashes @param {(first: number, end: number) => void} tell
 */
function forRuns(hashes, tell) {
  for (let end = 0; end < hashes.length; end++) {
    const first = end;
    while (end < hashes.length && hashes[end] !== 0) end++;
    if (end > first) tell(first, end);
  }
}

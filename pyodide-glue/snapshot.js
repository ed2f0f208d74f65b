// The memory that guests start from, as a `Blob`: that of a Python that has imported the runtime and much of the standard
// library. Pages of zeros are left out.
//
// Layout: the hash of the head, its size (64-bit numbers, little-endian), the head (`Head`) as JSON, the pages.

import { PAGE } from "./checkpoint.js";
import hasher from "./pages.wat";

/**
 * @typedef {object} Head
 * @property {string[]} hashes  of all pages of the memory; 0 where it is zero
 * @property {any} references  what Pyodide needs to know of its references to JavaScript
 */
/**
 * @typedef {object} Image
 * @property {BigInt64Array} hashes
 * @property {any} references
 * @property {Uint8Array} pages
 */

// Taken before any guest code runs: lockDown removes them.
const { Blob, Uint8Array } = self;
const PREFIX = 16;
const hashing = new WebAssembly.Module(hasher);

/** How the pages of a memory are hashed. @param {WebAssembly.Memory} memory */
export function createHash(memory) {
  const { exports } = new WebAssembly.Instance(hashing, { env: { memory } });
  return /** @type {(page: number) => bigint} */ (exports.hash);
}

/** @param {Uint8Array} head */
function hashHead(head) {
  const memory = new WebAssembly.Memory({ initial: 1 });
  new Uint8Array(memory.buffer).set(head);
  return createHash(memory)(0);
}

/**
 * @param {any} pyodide  started with `_makeSnapshot`. No reference to a JavaScript object may be in its memory.
 * @param {(page: number) => bigint} hash
 */
export function makeSnapshot({ _module: { HEAPU8 }, _api }, hash) {
  const hashes = Array.from({ length: HEAPU8.length / PAGE }, (_, page) => hash(page));
  const json = JSON.stringify({ hashes: hashes.map(String), references: _api.serializeHiwireState() });
  const head = new TextEncoder().encode(json);
  if (head.length > PAGE) throw new Error("the memory is too large for a snapshot");
  const pages = hashes.flatMap((hash, page) => (hash ? [HEAPU8.subarray(page * PAGE, (page + 1) * PAGE)] : []));
  return new Blob([new BigInt64Array([hashHead(head), BigInt(head.length)]), head, ...pages]);
}

/**
 * The parts of a snapshot; undefined when it is damaged, which its pages still may be.
 * @param {Blob} snapshot
 * @returns {Promise<Image | undefined>}
 */
export async function readSnapshot(snapshot) {
  const whole = await snapshot.arrayBuffer();
  if (whole.byteLength < PREFIX) return undefined;
  const [known, size] = new BigInt64Array(whole, 0, 2);
  const head = new Uint8Array(whole).subarray(PREFIX, PREFIX + Number(size));
  if (head.length > PAGE || hashHead(head) !== known) return undefined;
  const { hashes, references } = /** @type {Head} */ (JSON.parse(new TextDecoder().decode(head)));
  const pages = new Uint8Array(whole).subarray(PREFIX + head.length);
  if (pages.length !== hashes.filter((hash) => hash !== "0").length * PAGE) return undefined;
  return { hashes: BigInt64Array.from(hashes, BigInt), references, pages };
}

/**
 * Puts a snapshot into fresh memory.
 * @param {Image} image
 * @param {Uint8Array} memory
 * @param {(page: number) => bigint} hash
 */
export function copySnapshot({ hashes, pages }, memory, hash) {
  let at = 0;
  hashes.forEach((known, page) => {
    const start = page * PAGE;
    if (known) memory.set(pages.subarray(at, (at += PAGE)), start);
    else if (hash(page)) memory.fill(0, start, start + PAGE); // what is zero already stays untouched, and takes no room
  });
}

/** Whether the memory is as it was when its snapshot was made. @param {Image} image @param {(page: number) => bigint} hash */
export const isIntact = ({ hashes }, hash) => hashes.every((known, page) => hash(page) === known);

/**
 * One page of the memory in a snapshot.
 * @param {Blob} snapshot
 * @param {BigInt64Array} hashes
 * @param {number} page
 */
export function pageOf(snapshot, hashes, page) {
  if (!hashes[page]) return new Blob([new Uint8Array(PAGE)]);
  const after = hashes.subarray(page).filter((hash) => hash !== 0n).length;
  const start = snapshot.size - after * PAGE;
  return snapshot.slice(start, start + PAGE);
}

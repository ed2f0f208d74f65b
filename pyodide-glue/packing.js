// The snapshot of the package, dist/snapshot.bin: a snapshot (see snapshot.js) as small as it can be sent.
// Decisions: docs/internals/guest-in-a-browser.md.

/** The size of a page in bytes. A page is hashed as a whole, and saved when a byte of it has changed. */
export const PAGE = 4096;
/** The bytes ahead of a snapshot's head. */
export const PREFIX = 24;

/**
 * Unpacks the snapshot of the package, dist/snapshot.bin: a snapshot in the format gzip, whose pages are combined by XOR
 * with the module's initial memory. Most of them become zeros by that.
 * @param {Blob} packed
 * @param {Promise<WebAssembly.Memory>} initial  a fresh memory, in which nothing has run
 */
export async function unpackSnapshot(packed, initial) {
  const stream = packed.stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = await new Response(stream).arrayBuffer();
  xorPages(whole, new Uint8Array((await initial).buffer));
  return whole;
}

/** Combines the pages of a snapshot with those of a memory, by XOR. @param {ArrayBuffer} snapshot @param {Uint8Array} memory */
export function xorPages(snapshot, memory) {
  const [, size, count] = new Float64Array(snapshot, 0, 3);
  const hashes = new Float64Array(snapshot.slice(PREFIX + size, PREFIX + size + 8 * count));
  const base = new Uint32Array(memory.buffer);
  const words = PAGE / 4;
  let at = PREFIX + size + 8 * count;
  for (let page = 0; page < count && (page + 1) * PAGE <= memory.length; page++) {
    if (hashes[page] === 0) continue;
    const own = new Uint32Array(snapshot, at, words);
    for (let word = 0; word < words; word++) own[word] = (own[word] ?? 0) ^ (base[page * words + word] ?? 0);
    at += PAGE;
  }
}

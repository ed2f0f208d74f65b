// Messages between a host and the process of a guest, as bytes on a pipe. Both ends use this file.
//
// A message is its size as a 32-bit number, its lane (one byte), and a value. A value is its kind (one byte), a 32-bit
// number, and as many bytes of text, bytes or a Blob, or as many values of a list. So a guest that writes its own bytes can
// send what it could post anyway, and nothing else.
// Decisions: docs/internals/guest-in-a-process.md.

/** A value that crosses: nothing else than these. @typedef {null | string | Uint8Array | Blob | Value[]} Value */

/** The ports of a guest, and the script that its worker runs. A message for another lane is a fault. */
export const LANES = { port: 0, control: 1, script: 2 };

const SIZE = 4;
const HEAD = 5;
const KINDS = /** @type {const} */ (["null", "text", "bytes", "blob", "list"]);
/** Lists within lists: a message, and the files in it. */
const MAX_DEPTH = 3;
/** The most bytes of a message: more than a checkpoint has, and less than an ArrayBuffer may have. */
const MAX_BYTES = 2 ** 31 - 1;

/**
 * Makes a writer of messages. Messages leave in order, although a Blob has to be read first.
 * @param {(pieces: Uint8Array[]) => void} write  takes the pieces of one message
 * @param {(error: unknown) => void} fail  hears that a message could not be written. Later ones are dropped.
 */
export function createWriter(write, fail) {
  /** @type {[lane: number, value: Value][]} */
  const waiting = [];
  let isBusy = false;

  const drain = async () => {
    isBusy = true;
    try {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        const [lane, value] = next;
        write(pack(lane, encode(hasBlob(value) ? await readBlobs(value) : value)));
      }
      isBusy = false;
    } catch (error) {
      fail(error);
    }
  };

  /** @param {number} lane @param {Value} value */
  return (lane, value) => {
    if (isBusy || hasBlob(value)) {
      waiting.push([lane, value]);
      if (!isBusy) drain();
    } else write(pack(lane, encode(value)));
  };
}

/** Bytes that arrive as a Blob. */
class BlobBytes {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }
}

/** @typedef {null | string | Uint8Array | BlobBytes | ReadValue[]} ReadValue */

/** @param {Value} value @returns {boolean} */
const hasBlob = (value) => value instanceof Blob || (Array.isArray(value) && value.some(hasBlob));

/** @param {Value} value @returns {Promise<ReadValue>} */
async function readBlobs(value) {
  if (value instanceof Blob) return new BlobBytes(new Uint8Array(await value.arrayBuffer()));
  return Array.isArray(value) ? Promise.all(value.map(readBlobs)) : value;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder();

/** @param {Value | ReadValue} value @returns {Uint8Array[]} */
function encode(value) {
  if (Array.isArray(value)) return [head("list", value.length), ...value.flatMap(encode)];
  if (value === null) return [head("null", 0)];
  const [kind, bytes] =
    typeof value === "string"
      ? /** @type {const} */ (["text", encoder.encode(value)])
      : value instanceof BlobBytes
        ? /** @type {const} */ (["blob", value.bytes])
        : /** @type {const} */ (["bytes", value]);
  if (!(bytes instanceof Uint8Array)) throw new TypeError("a value that cannot cross to another process");
  return [head(kind, bytes.length), bytes];
}

/** @param {(typeof KINDS)[number]} kind @param {number} size */
function head(kind, size) {
  const bytes = new Uint8Array(HEAD);
  bytes[0] = KINDS.indexOf(kind);
  new DataView(bytes.buffer).setUint32(1, size, true);
  return bytes;
}

/** @param {number} lane @param {Uint8Array[]} pieces */
function pack(lane, pieces) {
  const size = pieces.reduce((total, piece) => total + piece.length, 1);
  if (size > MAX_BYTES) throw new RangeError("a message of more than 2 GB");
  const bytes = new Uint8Array(SIZE + 1);
  new DataView(bytes.buffer).setUint32(0, size, true);
  bytes[SIZE] = lane;
  return [bytes, ...pieces];
}

/**
 * Makes a reader of messages. It throws when the bytes are no message, and is of no use after.
 * @param {(lane: number, value: Value) => void} take
 * @returns {(chunk: Uint8Array) => void}
 */
export function createReader(take) {
  // Bytes are kept as they come, so that a size alone makes nobody take memory.
  /** @type {Uint8Array[]} */
  let chunks = [];
  let length = 0;
  let wanted = SIZE;
  let hasSize = false;

  return (chunk) => {
    chunks.push(chunk);
    length += chunk.length;
    while (length >= wanted) {
      const bytes = chunks.length === 1 ? chunks[0] : join(chunks, length);
      const part = bytes.subarray(0, wanted);
      chunks = wanted < length ? [bytes.subarray(wanted)] : [];
      length -= wanted;
      hasSize = !hasSize;
      wanted = hasSize ? new DataView(part.buffer, part.byteOffset).getUint32(0, true) : SIZE;
      if (wanted === 0 || wanted > MAX_BYTES) throw new RangeError("a message that cannot be");
      if (!hasSize) take(part[0], decode(part));
    }
  };
}

/** @param {Uint8Array} message @returns {Value} */
function decode(message) {
  const view = new DataView(message.buffer, message.byteOffset, message.length);
  let at = 1;
  /** @param {number} depth @returns {Value} */
  const next = (depth) => {
    const kind = KINDS[view.getUint8(at)];
    const size = view.getUint32(at + 1, true);
    at += HEAD;
    if (kind === "null") return null;
    if (kind === "list") {
      // Each value of a list takes bytes of the message, so the list is no longer than these.
      if (depth === MAX_DEPTH || size * HEAD > message.length - at) throw new RangeError("a list that cannot be");
      return Array.from({ length: size }, () => next(depth + 1));
    }
    const end = at + size;
    if (!kind || end > message.length) throw new RangeError("a value that cannot be");
    const bytes = message.subarray(at, end);
    at = end;
    if (kind === "text") return decoder.decode(bytes);
    return kind === "blob" ? new Blob([/** @type {BlobPart} */ (bytes)]) : bytes.slice();
  };
  const value = next(0);
  if (at !== message.length) throw new RangeError("bytes after a message");
  return value;
}

/** @param {Uint8Array[]} chunks @param {number} length */
function join(chunks, length) {
  const whole = new Uint8Array(length);
  let offset = 0;
  for (const chunk of chunks) {
    whole.set(chunk, offset);
    offset += chunk.length;
  }
  return whole;
}

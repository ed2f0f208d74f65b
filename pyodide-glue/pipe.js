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
/** The most values of a list: more than a batch of host calls has. */
const MAX_VALUES = 250_000;

/**
 * Makes a writer of messages. Messages leave in order, although a Blob has to be read first.
 * @param {(pieces: Uint8Array[]) => void} write  takes the pieces of one message
 * @param {(error: unknown) => void} fail  hears that a message could not be written. Later ones are dropped.
 */
export function createWriter(write, fail) {
  /** @type {[lane: number, value: Value][]} */
  const waiting = [];
  let isBusy = false;
  let hasFailed = false;

  const drain = async () => {
    isBusy = true;
    try {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        const [lane, value] = next;
        write(pack(lane, encode(hasBlob(value) ? await readBlobs(value) : value)));
      }
    } catch (error) {
      hasFailed = true;
      waiting.length = 0;
      fail(error);
    }
    isBusy = false;
  };

  /** @param {number} lane @param {Value} value */
  return (lane, value) => {
    if (hasFailed) return;
    waiting.push([lane, value]);
    // It runs at once as far as the first Blob.
    if (!isBusy) drain();
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
  if (value instanceof Blob && value.size > MAX_BYTES) throw new RangeError("a file of more than 2 GB");
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
 * @param {number} [maxBytes]  the most bytes of a message beside its Blobs
 * @returns {(chunk: Uint8Array) => void}
 */
export function createReader(take, maxBytes = MAX_BYTES) {
  // Bytes are kept as they come, so that a size alone makes nobody take memory.
  /** @type {Uint8Array[]} */
  let chunks = [];
  let length = 0;
  const messages = readMessages(take, maxBytes);
  let wanted = messages.next().value ?? Infinity;

  return (chunk) => {
    chunks.push(chunk);
    length += chunk.length;
    while (length >= wanted) {
      // All but the last were not enough, so the end of these bytes is in the last.
      const last = /** @type {Uint8Array} */ (chunks.pop());
      const end = last.length - (length - wanted);
      const parts = [...chunks, last.subarray(0, end)];
      chunks = end < last.length ? [last.subarray(end)] : [];
      length -= wanted;
      wanted = messages.next(parts).value ?? Infinity;
    }
  };
}

/**
 * Reads messages without end. It yields a number of bytes, at least one, and is continued with these.
 * @param {(lane: number, value: Value) => void} take
 * @param {number} maxBytes
 * @returns {Generator<number, void, Uint8Array[]>}
 */
function* readMessages(take, maxBytes) {
  /** The bytes of the message that were not read yet. */
  let left = 0;
  /** Those that it may still have beside its Blobs. */
  let allowed = 0;

  /** @param {number} size @param {boolean} [isBlob] @returns {Generator<number, Uint8Array[], Uint8Array[]>} */
  function* bytes(size, isBlob) {
    if (size > left) throw new RangeError("a value that cannot be");
    if (!isBlob && size > allowed) throw new RangeError(`a message of more than ${maxBytes} bytes beside its files`);
    left -= size;
    if (!isBlob) allowed -= size;
    return size ? yield size : [];
  }

  /** @param {number} depth @returns {Generator<number, Value, Uint8Array[]>} */
  function* value(depth) {
    const head = join(yield* bytes(HEAD));
    const kind = KINDS[head[0]];
    const size = new DataView(head.buffer).getUint32(1, true);
    if (kind === "null") return null;
    if (kind === "text") return decoder.decode(join(yield* bytes(size)));
    if (kind === "bytes") return join(yield* bytes(size));
    if (kind === "blob") return new Blob(/** @type {BlobPart[]} */ (yield* bytes(size, true)));
    // Each value of a list takes bytes of the message, so the list is no longer than these.
    if (kind !== "list" || depth === MAX_DEPTH || size > MAX_VALUES || size * HEAD > left)
      throw new RangeError("a list that cannot be");
    /** @type {Value[]} */
    const list = [];
    while (list.length < size) list.push(yield* value(depth + 1));
    return list;
  }

  for (;;) {
    left = new DataView(join(yield SIZE).buffer).getUint32(0, true);
    if (left > MAX_BYTES) throw new RangeError("a message that cannot be");
    allowed = maxBytes;
    const [lane] = join(yield* bytes(1));
    const whole = yield* value(0);
    if (left > 0) throw new RangeError("bytes after a message");
    take(lane, whole);
  }
}

/** Makes a copy, because a chunk may be memory that its stream uses again. @param {Uint8Array[]} chunks */
function join(chunks) {
  const whole = new Uint8Array(chunks.reduce((total, chunk) => total + chunk.length, 0));
  let offset = 0;
  for (const chunk of chunks) {
    whole.set(chunk, offset);
    offset += chunk.length;
  }
  return whole;
}

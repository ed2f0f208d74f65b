// Converts names of files between C, where they are bytes, and Emscripten's file system, where they are strings.
//
// Emscripten takes the bytes for UTF-8, and replaces bytes that are not, so that different names become the same. Here,
// such a byte becomes one of U+DC80 to U+DCFF, as in Python (`surrogateescape`): every name has a string of its own,
// which leads back to it.

// Taken before any guest code runs: it may replace them.
const { TextDecoder, TextEncoder, Uint8Array } = self;
const { fromCharCode } = String;
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const decode = decoder.decode.bind(decoder);
const encoder = new TextEncoder();
const encode = encoder.encode.bind(encoder);
const ESCAPE = 0xdc00;

/** @param {Uint8Array} bytes */
export function decodeName(bytes) {
  try {
    return decode(bytes);
  } catch {
    return decodeEscaping(bytes);
  }
}

/** @param {Uint8Array} bytes */
function decodeEscaping(bytes) {
  let name = "";
  for (let at = 0; at < bytes.length;) {
    const byte = bytes[at];
    const length = byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    try {
      name += decode(bytes.subarray(at, at + length));
      at += length;
    } catch {
      name += fromCharCode(ESCAPE | byte);
      at += 1;
    }
  }
  return name;
}

/** @param {string} name */
export function encodeName(name) {
  if (name.isWellFormed()) return encode(name);
  /** @type {number[]} */
  const bytes = [];
  for (const char of name) {
    const code = char.charCodeAt(0);
    if (char.length === 1 && code > ESCAPE + 0x7f && code <= ESCAPE + 0xff) bytes.push(code & 0xff);
    else bytes.push(...encode(char));
  }
  return new Uint8Array(bytes);
}

/** A path in the form for the host, the same as `shown` of files.py makes. @param {string} path */
export function showName(path) {
  return path
    .replace(/\\(?=udc[89a-f][0-9a-f]|x5c)/g, "\\x5c")
    .replace(/[\ud800-\udfff]/gu, (unit) => `\\u${unit.charCodeAt(0).toString(16)}`);
}

/** The functions that Emscripten's system calls use for names of files. build.mjs changes Emscripten's script to do so. */
export const fileNames = {
  /** @param {Uint8Array} heap @param {number} at  where the name is, which a zero ends */
  read: (heap, at) => decodeName(heap.subarray(at, heap.indexOf(0, at))),
  /** @param {string} name  */
  size: (name) => encodeName(name).length,
  /** Writes a name and a zero byte, at most `most` bytes.
   * Writes a name and a zero, at most `most` bytes.
   * @param {string} name @param {Uint8Array} heap @param {number} at @param {number} most
   */
  write(name, heap, at, most) {
    const bytes = encodeName(name).subarray(0, most - 1);
    heap.set(bytes, at);
    heap[at + bytes.length] = 0;
  },
};

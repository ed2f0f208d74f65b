// The mailbox: shared memory as a second way to a guest, for a worker that is blocked in `Atomics.wait` and hears no
// message.
//
// Layout: three 32-bit numbers (state, size of the message, size of this piece), then the piece. A message is the size
// of its header as a 32-bit number, the header as UTF-8 JSON, and the body. The reader asks for the next piece by
// posting a message to the thread that started it.
// Decisions: docs/internals/guest-in-a-browser.md.

/** @import { Request } from "../pkg/sandglass.js" */
/** The frame's answer to a question for the library. @typedef {{ type: "library", missing?: string }} Answer */

const EMPTY = 0;
const FULL = 1;
const HEADER_BYTES = 12;
const MAILBOX_BYTES = 1 << 20;

// Taken before any guest code runs: lockDown removes them.
const { load, notify, store, wait } = Atomics;
const askForMore = globalThis.postMessage?.bind(globalThis);

/** Makes the memory of a mailbox; undefined where this context may not share memory with its workers. */
export function createMailbox() {
  return globalThis.crossOriginIsolated ? new SharedArrayBuffer(MAILBOX_BYTES) : undefined;
}

/**
 * Makes the writing end, for the thread that started the worker: the frame's, or the page's.
 * @param {SharedArrayBuffer} mailbox
 * @param {Pick<Worker, "addEventListener">} worker
 */
export function createMailboxWriter(mailbox, worker) {
  const state = new Int32Array(mailbox, 0, 3);
  const piece = new Uint8Array(mailbox, HEADER_BYTES);
  /** @type {Uint8Array[]} */
  const queue = [];
  let offset = 0;

  const fill = () => {
    const [message] = queue;
    if (!message || load(state, 0) === FULL) return;
    const part = message.subarray(offset, offset + piece.length);
    piece.set(part);
    state[1] = message.length;
    state[2] = part.length;
    offset += part.length;
    if (offset === message.length) {
      queue.shift();
      offset = 0;
    }
    store(state, 0, FULL);
    notify(state, 0);
  };
  worker.addEventListener("message", fill);

  /** @param {[string, Uint8Array?]} message */
  return ([header, body = new Uint8Array(0)]) => {
    const head = new TextEncoder().encode(header);
    const message = new Uint8Array(4 + head.length + body.length);
    new DataView(message.buffer).setUint32(0, head.length, true);
    message.set(head, 4);
    message.set(body, 4 + head.length);
    queue.push(message);
    fill();
  };
}

/**
 * Makes the reading end, for the worker.
 * @param {SharedArrayBuffer} mailbox
 * @returns {(ms: number) => { request: Request | Answer, body: Uint8Array<ArrayBuffer> } | null} waits for one message, at
 * most `ms`
 */
export function readMailbox(mailbox) {
  const state = new Int32Array(mailbox, 0, 3);
  const piece = new Uint8Array(mailbox, HEADER_BYTES);
  const { parse } = JSON;
  const decoder = new TextDecoder();

  return (ms) => {
    /** @type {Uint8Array<ArrayBuffer> | undefined} */
    let message;
    let offset = 0;
    do {
      if (wait(state, 0, EMPTY, message ? Infinity : ms) === "timed-out") return null;
      message ??= new Uint8Array(state[1]);
      message.set(piece.subarray(0, state[2]), offset);
      offset += state[2];
      store(state, 0, EMPTY);
      askForMore(null);
    } while (offset < message.length);
    const end = 4 + new DataView(message.buffer).getUint32(0, true);
    return { request: parse(decoder.decode(message.subarray(4, end))), body: message.slice(end) };
  };
}

// Runs of `runRlm` that the browser keeps (the option `persist`): the question, its contexts, and the model's replies so far. A run that is
// begun again gets these replies instead of asking, and goes on from there.
//
// The store is that of kept sessions. Bodies are the contexts, and then parts of lines of JSON, one line for each reply.
// Decisions: docs/internals/saving-and-restoring.md.

import { RUN, openSession } from "./kept-sessions.js";
import { SandboxError } from "./sandbox-error.js";

/** @import { EncryptionKey } from "../pkg/sandglass.js" */
/** @import { StoredBody } from "./kept-sessions.js" */
/** How a value is stored. @typedef {"text" | "file" | "bytes" | "json"} Form */
/** A value's place and its body. @typedef {[leaf: Leaf, body: StoredBody]} Stored */
/** A value's place: the form, and a file's name and type, which encryption would lose. @typedef {{ form: Form, file?: { name: string, type: string } }} Leaf */
/** A context: one value, or several by name. @typedef {Leaf | { named: [name: string, leaf: Leaf][] }} Shape */
/**
 * The description of a run. `outcome` is there once it is over.
 * @typedef {{ run: 1, task: string, contexts: Shape[], parts: number[], outcome?: string }} Description
 */

/** The longest time that a run's end waits for the store, in milliseconds. */
const CLOSE_MS = 10_000;
/** The bytes of two files that are compared at once. */
const SLICE = 4 << 20;

/**
 * Opens the run of this name: the kept one if it is about the same, else a new one, which replaces it.
 * @param {string} name @param {EncryptionKey | undefined} key @param {string} task @param {unknown[]} contexts
 */
export async function openRun(name, key, task, contexts) {
  const { shapes, bodies } = storedAs(contexts);
  const { store, kept } = await open(name, key);
  let isSame = false;
  try {
    isSame = kept !== undefined && (await isAbout(kept, task, shapes, bodies));
  } catch (error) {
    store.close();
    const why = error instanceof Error ? error.message : String(error);
    throw new SandboxError("persist_failed", `persist: a context cannot be read (${why}); choose the file again`);
  }
  let replies = isSame && kept ? kept.lines : [];
  /** @type {Description} */
  const about = { run: 1, task, contexts: shapes, parts: isSame && kept ? kept.about.parts : [] };
  const contextBodies = bodies.length;
  let bytes = bodies.reduce((sum, body) => sum + sizeOf(body), 0);
  for (const line of replies) bytes += line.length;
  let count = replies.length;
  /** Bodies that are to be written. @type {[number, StoredBody][]} */
  let added = isSame ? [] : bodies.map((body, index) => [index + 1, body]);
  store.forgetBodies();

  /** @type {string[]} */
  let waiting = [];
  /** The end of the last write. */
  let last = Promise.resolve();
  let isDue = false;
  /** The reason for which the newest replies are not kept. After it, only the end of the run tries again. */
  let problem = "";

  const write = async () => {
    isDue = false;
    if (waiting.length > 0) {
      const part = (about.parts.at(-1) ?? contextBodies) + 1;
      about.parts.push(part);
      added.push([part, waiting.join("\n")]);
      waiting = [];
    }
    try {
      const numbers = [...Array.from({ length: contextBodies }, (_, index) => index + 1), ...about.parts];
      await store.write(JSON.stringify(about), count, bytes, added, numbers, false);
      added = [];
      problem = "";
    } catch (error) {
      problem = error instanceof Error ? error.message : String(error);
    }
  };
  /** Writes what waits. Replies that come during a write are written together. */
  const written = () => {
    if (!isDue) {
      isDue = true;
      last = last.then(write);
    }
    return last;
  };
  void written(); // the question and its contexts, so that a page that ends before the first reply can go on

  return {
    /** Hands out the replies so far, each as the supervisor's JSON. */
    takeReplies() {
      const taken = replies;
      replies = [];
      return taken;
    },

    /** Keeps a reply. Resolves when it is written, or cannot be. @param {string} line */
    add(line) {
      waiting.push(line);
      count += 1;
      bytes += line.length;
      return problem ? Promise.resolve() : written();
    },

    /** Ends the run, and gives it up. Resolves to the reason for which its newest replies are not kept, if so. @param {string} outcome */
    async close(outcome) {
      about.outcome = outcome;
      const late = new Promise((resolve) => setTimeout(resolve, CLOSE_MS));
      const isLate = await Promise.race([written().then(() => false), late.then(() => true)]);
      store.close(); // what is being written is written to its end
      return isLate ? `it was not written within ${CLOSE_MS / 1000} s` : problem || undefined;
    },
  };
}

/**
 * Reads a kept run: its question and its contexts, as `runRlm` takes them. `outcome` is undefined if it is not over. Resolves to undefined if
 * there is none.
 * @param {string | { name: string, key?: EncryptionKey }} persist
 * @returns {Promise<{ task: string, contexts: unknown[], replies: number, outcome: string | undefined } | undefined>}
 */
export async function readPersistedRun(persist) {
  const { name, key } = typeof persist === "string" ? { name: persist, key: undefined } : persist;
  const { store, kept } = await open(name, key);
  try {
    if (!kept) return undefined;
    const { task, outcome, contexts: shapes } = kept.about;
    const bodies = kept.bodies.values();
    const next = (/** @type {Leaf} */ leaf) => valueOf(leaf, /** @type {StoredBody} */ (bodies.next().value));
    const contexts = [];
    for (const shape of shapes) {
      if ("form" in shape) {
        contexts.push(await next(shape));
        continue;
      }
      const fields = [];
      for (const [name, leaf] of shape.named) fields.push([name, await next(leaf)]);
      contexts.push(Object.fromEntries(fields));
    }
    return { task, contexts, replies: kept.lines.length, outcome };
  } finally {
    store.close();
  }
}

/**
 * The value of a stored body. A file is a copy, because the store's own cannot be read any more once the run is deleted or replaced.
 * @param {Leaf} leaf @param {StoredBody} body
 */
async function valueOf({ form, file }, body) {
  if (form === "json") return JSON.parse(String(body));
  if (!(body instanceof Blob)) return body;
  const bytes = await body.arrayBuffer();
  return file?.name ? new File([bytes], file.name, { type: file.type }) : new Blob([bytes], { type: file?.type });
}

/** @typedef {{ about: Description, bodies: StoredBody[], lines: string[] }} Kept */

/**
 * @param {string} name @param {EncryptionKey | undefined} key
 * @returns {Promise<{ store: Awaited<ReturnType<typeof openSession>>, kept?: Kept }>}
 */
async function open(name, key) {
  const store = await openSession(name, key, RUN);
  try {
    if (store.description === undefined) return { store };
    /** @type {Description} */
    const about = JSON.parse(store.description);
    const bodyOf = (/** @type {number} */ id) => {
      const body = store.body(id);
      if (body === undefined) throw unreadable(name, "a part of it is missing; deletePersisted removes it");
      return body;
    };
    const count = about.contexts.reduce((sum, shape) => sum + ("form" in shape ? 1 : shape.named.length), 0);
    const bodies = Array.from({ length: count }, (_, index) => bodyOf(index + 1));
    const lines = about.parts.flatMap((part) => String(bodyOf(part)).split("\n"));
    return { store, kept: { about, bodies, lines } };
  } catch (error) {
    store.close();
    throw error instanceof SandboxError ? error : unreadable(name, "it is damaged; deletePersisted removes it");
  }
}

/** @param {string} name @param {string} why */
const unreadable = (name, why) => new SandboxError("persist_failed", `persist: the kept run "${name}": ${why}`);

/** Contexts as they are stored. @param {unknown[]} contexts */
function storedAs(contexts) {
  /** @type {StoredBody[]} */
  const bodies = [];
  const add = (/** @type {Stored} */ [leaf, body]) => {
    bodies.push(body);
    return leaf;
  };
  const shapes = contexts.map((context) => {
    const stored = storedValue(context);
    if (stored) return add(stored);
    const fields = isObject(context)
      ? Object.entries(context).map(([name, value]) => ({ name, stored: storedValue(value) }))
      : [];
    const named = fields.flatMap(({ name, stored }) =>
      stored ? [/** @type {[string, Leaf]} */ ([name, add(stored)])] : [],
    );
    if (fields.length > 0 && named.length === fields.length) return { named };
    throw new SandboxError(
      "invalid_option",
      "persist: contexts must be texts, Files, Uint8Arrays or JSON values, or several of them by name; leave persist out for others",
    );
  });
  return { shapes, bodies };
}

/** @param {unknown} value @returns {Stored | undefined} */
function storedValue(value) {
  if (typeof value === "string") return [{ form: "text" }, value];
  if (value instanceof Blob) {
    const file = { name: value instanceof File ? value.name : "", type: value.type };
    return [{ form: "file", file }, value];
  }
  if (value instanceof Uint8Array) return [{ form: "bytes" }, value.slice()];
  return isJson(value) ? [{ form: "json" }, JSON.stringify(value)] : undefined;
}

/** True for values that JSON brings back as they were. @param {unknown} value @param {number} [depth] @returns {boolean} */
function isJson(value, depth = 0) {
  if (value === null || typeof value === "string" || typeof value === "boolean") return true;
  if (typeof value === "number") return Number.isFinite(value) && !Object.is(value, -0);
  if (depth > 100) return false; // or it contains itself
  const isInner = (/** @type {unknown} */ inner) => isJson(inner, depth + 1);
  return Array.isArray(value) ? value.every(isInner) : isObject(value) && Object.values(value).every(isInner);
}

/** @param {unknown} value @returns {value is object} */
const isObject = (value) =>
  typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;

/** @param {Kept} kept @param {string} task @param {Shape[]} shapes @param {StoredBody[]} bodies */
async function isAbout(kept, task, shapes, bodies) {
  if (kept.about.task !== task || JSON.stringify(kept.about.contexts) !== JSON.stringify(shapes)) return false;
  for (const [index, body] of bodies.entries()) {
    const other = kept.bodies[index];
    if (other === undefined || !(await isSame(body, other))) return false;
  }
  return true;
}

/** @param {StoredBody} one @param {StoredBody} other */
async function isSame(one, other) {
  if (typeof one === "string" || typeof other === "string") return one === other;
  if (sizeOf(one) !== sizeOf(other)) return false;
  for (let start = 0; start < sizeOf(one); start += SLICE) {
    const [bytes, others] = [await bytesOf(one, start), await bytesOf(other, start)];
    for (let index = 0; index < bytes.length; index++) if (bytes[index] !== others[index]) return false;
  }
  return true;
}

/** @param {Uint8Array | Blob} body @param {number} start */
async function bytesOf(body, start) {
  if (!(body instanceof Blob)) return body.subarray(start, start + SLICE);
  return new Uint8Array(await body.slice(start, start + SLICE).arrayBuffer());
}

/** @param {StoredBody} body */
const sizeOf = (body) => (body instanceof Blob ? body.size : body.length);

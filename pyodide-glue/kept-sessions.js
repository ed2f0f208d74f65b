// The sessions that the browser keeps (the option `persist`), in an IndexedDB of the page's origin.
//
// The store is IndexedDB, because one of its transactions writes the description of a session together with the bodies that it names. So a
// crash of the tab leaves the session as it was before or as it is after. Bodies that were written before are not written again.
//
// One sandbox at a time has a session: it holds a Web Lock of the session's name.
// Decisions: docs/internals/saving-and-restoring.md.

import { BODIES, JOURNALS, SESSIONS, inTransaction, openDatabase, result } from "./kept-database.js";
import { SandboxError } from "./sandbox-error.js";

/** A checkpoint without encryption: the browser stores its bytes as a file. @typedef {{ blob: Blob, sha256: ArrayBuffer }} Checked */
/** @import { EncryptionKey } from "../pkg/sandglass.js" */
/** A body as the supervisor holds it. @typedef {string | Uint8Array | Blob} StoredBody */
/** An encrypted text or body. `kind` is that of the body. @typedef {{ kind: "string" | "bytes" | "blob", iv: Uint8Array, data: ArrayBuffer }} Sealed */
/**
 * The description of a session. `description` is the supervisor's JSON.
 * @typedef {{ build: string, savedAt: number, bytes: number, execution: number, encrypted: boolean, description: string | Sealed }} Entry
 */
/**
 * A part of a journal: its text and a body, if it has one. Without a key, `proof` is the hash of the part before and of this one.
 * @typedef {{ at: number, text: string | Sealed, body?: StoredBody | Sealed | Checked, proof?: ArrayBuffer }} Part
 */
/** The journal of an ended execution: its text, and the bodies that the text names by their places. @typedef {[text: string, ...bodies: StoredBody[]]} Ended */
/** The same in the store. Without a key, its hash is there. @typedef {{ journal: Sealed | { bytes: Uint8Array<ArrayBuffer>, sha256: ArrayBuffer } }} StoredEnded */
/**
 * A change of a session's journal: the part's number, its text and its body. A number of 0 begins another journal, and without a text there
 * is none any more. -1 is the reason for which the execution cannot be resumed.
 * @typedef {[number: number, text: string | undefined, body: StoredBody | undefined]} Note
 */
/** A kept session, as `listPersisted` shows it. @typedef {{ name: string, execution: number, bytes: number, savedAt: number, encrypted: boolean }} PersistedSession */

/** The number of the part that says why the execution cannot be resumed. It follows no other part. */
const BROKEN = -1;
/** The build of a kept run (kept-runs.js). Replies mean the same to every release, because the text of a prompt finds them. */
export const RUN = "run";
/** Time to wait for a tab that is about to give a session up, as at a reload, in milliseconds. */
const LOCK_WAIT_MS = 1000;

/**
 * Opens a session that is kept, or will be. Rejects with `persist_in_use` when another sandbox has it.
 * @param {string} name
 * @param {EncryptionKey | undefined} key
 * @param {string} build  the release's guests, or `RUN`; a state of others means nothing to them
 */
export async function openSession(name, key, build) {
  needBrowser();
  needKey(key);
  const release = await claim(name);
  /** @type {IDBDatabase | undefined} */
  let opened;
  try {
    const database = (opened = await openDatabase());
    const seal = createSeal(name, key);
    const { entry, bodies, parts } = await read(database, name);
    if (entry && entry.encrypted !== Boolean(key)) {
      const advice = entry.encrypted ? "give its key as persist: { name, key }" : "leave the key out";
      throw failed(name, `it was kept ${entry.encrypted ? "encrypted" : "without a key"}: ${advice}`);
    }
    if (entry && (entry.build === RUN) !== (build === RUN)) {
      const its = build === RUN ? "a sandbox's" : "a run of runRlm";
      throw failed(name, `it is ${its}: use another name`);
    }
    const description = entry && String(await seal.open(0, entry.description));
    /** @type {Map<number, StoredBody>} */
    const found = new Map();
    /** @type {Map<number, StoredEnded>} */
    const ended = new Map();
    for (const [id, body] of bodies) {
      if (typeof body === "object" && "journal" in body) ended.set(id, body);
      else found.set(id, await seal.open(id, body));
    }
    const journal = createJournal(name, seal, Boolean(key));
    const noted = entry && (await journal.read(parts));
    return {
      /** The parts of the journal: the time in milliseconds since 1970, the text and the body of each. The first begins it. */
      journal: noted?.parts ?? [],
      /** The reason for which its execution cannot be resumed. */
      broken: noted?.broken,

      /** Changes the journal. @param {Note[]} notes */
      async note(notes) {
        try {
          const sealed = await journal.seal(notes);
          await inTransaction(database, [JOURNALS], (parts) => {
            for (const [number, part] of sealed) {
              if (number === 0) parts.delete(allOf(name));
              if (part) parts.put(part, [name, number]);
            }
          });
        } catch (error) {
          throw failed(name, `its journal could not be written (${why(error)})`);
        }
      },

      /** The supervisor's JSON; undefined for a new session. */
      description,
      /** True when guests of this release can take the state. */
      isOfBuild: entry?.build === build,
      /** @param {number} id */
      body: (id) => found.get(id),
      /** The journal of an ended execution. Rejects if it is damaged: the session is worth more than it. @param {number} id @returns {Promise<Ended>} */
      async ended(id) {
        const stored = ended.get(id)?.journal;
        if (!stored) throw failed(name, `the journal ${id} is missing`);
        if ("data" in stored) return unpack(/** @type {Uint8Array} */ (await seal.open(id, stored)));
        const { bytes, sha256 } = stored;
        if (!isSame(sha256, await crypto.subtle.digest("SHA-256", bytes)))
          throw failed(name, `the journal ${id} is damaged`);
        return unpack(bytes);
      },
      /** Lets go of the bodies that were read. */
      forgetBodies() {
        found.clear();
        ended.clear();
      },

      /**
       * Replaces what is kept. `added` are bodies and their numbers; those whose numbers are not among `all` are removed.
       * @param {string} description @param {number} execution @param {number} bytes
       * @param {[number, StoredBody | Ended][]} added @param {number[]} all
       * @param {boolean} keepsJournal  whether the journal is of an execution after this state
       */
      async write(description, execution, bytes, added, all, keepsJournal) {
        try {
          /** @type {[number, StoredBody | Sealed | Checked | StoredEnded][]} */
          const sealed = [];
          for (const [id, body] of added) {
            if (!Array.isArray(body)) sealed.push([id, await seal.close(id, body)]);
            else sealed.push([id, { journal: await seal.closeBytes(id, await pack(body)) }]);
          }
          const text = /** @type {string | Sealed} */ (await seal.close(0, description));
          const entry = { build, savedAt: Date.now(), bytes, execution, encrypted: Boolean(key), description: text };
          await write(database, name, entry, sealed, new Set(all), keepsJournal);
        } catch (error) {
          throw failed(name, `it could not be written (${why(error)}); what was kept before is still kept`);
        }
      },

      /** Gives the session up, so that another sandbox can have it. */
      close() {
        database.close();
        release();
      },
    };
  } catch (error) {
    opened?.close();
    release();
    throw asFailure(name, error);
  }
}

/** Lists the sessions that this origin keeps, the newest first. @returns {Promise<PersistedSession[]>} */
export async function listPersisted() {
  needBrowser();
  try {
    const database = await openDatabase();
    try {
      const store = database.transaction(SESSIONS).objectStore(SESSIONS);
      const [names, entries] = await Promise.all([result(store.getAllKeys()), result(store.getAll())]);
      const sessions = entries.map(({ execution, bytes, savedAt, encrypted }, index) => {
        return { name: String(names[index]), execution, bytes, savedAt, encrypted };
      });
      return sessions.sort((one, other) => other.savedAt - one.savedAt);
    } finally {
      database.close();
    }
  } catch (error) {
    if (error instanceof SandboxError) throw error;
    throw new SandboxError("persist_failed", `persist: the kept sessions cannot be listed: ${why(error)}`);
  }
}

/** Removes a kept session. Rejects with `persist_in_use` while a sandbox has it. @param {string} name */
export async function deletePersisted(name) {
  needBrowser();
  const release = await claim(name);
  try {
    const database = await openDatabase();
    try {
      await inTransaction(database, [SESSIONS, BODIES, JOURNALS], (sessions, bodies, parts) => {
        sessions.delete(name);
        bodies.delete(allOf(name));
        parts.delete(allOf(name));
      });
    } finally {
      database.close();
    }
  } catch (error) {
    throw asFailure(name, error);
  } finally {
    release();
  }
}

/** @param {EncryptionKey | undefined} key */
function needKey(key) {
  const needs = /** @type {const} */ (["encrypt", "decrypt"]);
  if (!key || (key.algorithm.name === "AES-GCM" && needs.every((use) => key.usages.includes(use)))) return;
  throw new SandboxError("invalid_option", "persist.key: must be a key of AES-GCM that encrypts and decrypts");
}

function needBrowser() {
  const lacks = !globalThis.indexedDB ? "IndexedDB" : !globalThis.navigator?.locks ? "Web Locks" : undefined;
  if (lacks) throw new SandboxError("invalid_option", `persist: needs ${lacks}, which is not here; leave it out`);
}

/** Takes the lock of a session. Resolves to the function that gives it back. @param {string} name @returns {Promise<() => void>} */
function claim(name) {
  return new Promise((resolve, reject) => {
    const signal = AbortSignal.timeout(LOCK_WAIT_MS);
    const hold = () => new Promise((release) => resolve(() => release(undefined)));
    navigator.locks.request(`sandglass ${name}`, { signal }, hold).catch((error) => {
      if (error?.name !== "TimeoutError") return reject(failed(name, why(error)));
      const what = `persist: another sandbox, here or in another tab, has the session "${name}"; destroy it, or use another name`;
      reject(new SandboxError("persist_in_use", what));
    });
  });
}

/** @param {IDBDatabase} database @param {string} name */
async function read(database, name) {
  const transaction = database.transaction([SESSIONS, BODIES, JOURNALS]);
  const bodies = transaction.objectStore(BODIES);
  const journals = transaction.objectStore(JOURNALS);
  const [entry, keys, values, numbers, parts] = await Promise.all([
    result(/** @type {IDBRequest<Entry | undefined>} */ (transaction.objectStore(SESSIONS).get(name))),
    result(bodies.getAllKeys(allOf(name))),
    result(/** @type {IDBRequest<(StoredBody | Sealed | Checked | StoredEnded)[]>} */ (bodies.getAll(allOf(name)))),
    result(journals.getAllKeys(allOf(name))),
    result(/** @type {IDBRequest<Part[]>} */ (journals.getAll(allOf(name)))),
  ]);
  const pairs = keys.map((key, index) => /** @type {const} */ ([Number(/** @type {any} */ (key)[1]), values[index]]));
  const numbered = numbers.map(
    (key, index) => /** @type {const} */ ([Number(/** @type {any} */ (key)[1]), parts[index]]),
  );
  return {
    entry,
    parts: new Map(numbered),
    bodies: /** @type {[number, StoredBody | Sealed | Checked | StoredEnded][]} */ (/** @type {unknown} */ (pairs)),
  };
}

/** @param {IDBDatabase} database @param {string} name @param {Entry} entry @param {[number, StoredBody | Sealed | Checked | StoredEnded][]} added @param {Set<number>} all @param {boolean} keepsJournal */
const write = (database, name, entry, added, all, keepsJournal) =>
  inTransaction(database, [SESSIONS, BODIES, JOURNALS], (sessions, bodies, parts) => {
    if (!keepsJournal) parts.delete(allOf(name));
    for (const [id, body] of added) bodies.put(body, [name, id]);
    sessions.put(entry, name);
    const keys = bodies.getAllKeys(allOf(name));
    keys.onsuccess = () => {
      for (const key of keys.result) if (!all.has(Number(/** @type {any} */ (key)[1]))) bodies.delete(key);
    };
  });

/** The keys of a session's bodies, and of the parts of its journal. @param {string} name */
const allOf = (name) => IDBKeyRange.bound([name, BROKEN], [name, Infinity]);

/**
 * Seals the parts of a session's journal, and checks those that are read. With a key, each part is bound to its journal by its number and by the
 * time at which the journal began. Without one, each has the hash of all parts up to it.
 * @param {string} name @param {ReturnType<typeof createSeal>} seal @param {boolean} isEncrypted
 */
function createJournal(name, seal, isEncrypted) {
  /** The time at which the journal began, which stands for the journal. */
  let begun = 0;
  let proof = new ArrayBuffer(0);
  /** @param {number} number */
  const label = (number) => `journal ${begun} ${number}`;
  /** @param {number} number @param {string} text @param {StoredBody | undefined} body */
  const proofOf = async (number, text, body) => {
    const before = number === 0 || number === BROKEN ? new ArrayBuffer(0) : proof;
    // A `Blob` of all this would take several times as long to be read.
    const head = new TextEncoder().encode(`${number} ${text.length} ${text}`);
    const rest = body instanceof Blob ? await body.arrayBuffer() : typeof body === "string" ? codes(body).buffer : body;
    return crypto.subtle.digest(
      "SHA-256",
      joined([new Uint8Array(before), head, new Uint8Array(/** @type {ArrayBuffer} */ (rest ?? new ArrayBuffer(0)))]),
    );
  };
  return {
    /** @param {Note[]} notes @returns {Promise<[number, Part | undefined][]>} */
    async seal(notes) {
      /** @type {[number, Part | undefined][]} */
      const sealed = [];
      for (const [number, text, body] of notes) {
        if (text === undefined) {
          sealed.push([number, undefined]);
          continue;
        }
        const at = Date.now();
        if (number === 0) begun = at;
        if (isEncrypted) {
          const part = { at, text: /** @type {Sealed} */ (await seal.close(label(number), text)) };
          const its = body === undefined ? undefined : await seal.close(`${label(number)} body`, body);
          sealed.push([number, { ...part, body: its }]);
          continue;
        }
        const own = await proofOf(number, text, body);
        if (number !== BROKEN) proof = own;
        sealed.push([number, { at, text, body, proof: own }]);
      }
      return sealed;
    },

    /**
     * @param {Map<number, Part>} all
     * @returns {Promise<{ parts: [at: number, text: string, body: StoredBody | undefined][], broken: string | undefined } | undefined>}
     */
    async read(all) {
      /** @type {[number, string, StoredBody | undefined][]} */
      const parts = [];
      begun = all.get(0)?.at ?? 0;
      /** @param {number} number @param {Part} part */
      const open = async (number, part) => {
        if (isEncrypted) {
          const text = String(await seal.open(label(number), part.text));
          const body = part.body === undefined ? undefined : await seal.open(`${label(number)} body`, part.body);
          return /** @type {const} */ ([text, body]);
        }
        const [text, body] = [/** @type {string} */ (part.text), /** @type {StoredBody | undefined} */ (part.body)];
        const own = await proofOf(number, text, body);
        if (!part.proof || !isSame(own, part.proof)) throw damaged(name, "its journal is damaged");
        if (number !== BROKEN) proof = own;
        return /** @type {const} */ ([text, body]);
      };
      const broken = all.get(BROKEN);
      const count = all.size - (broken ? 1 : 0);
      if (all.size === 0) return undefined;
      for (let number = 0; number < count; number++) {
        const part = all.get(number);
        if (!part) throw damaged(name, "a part of its journal is missing");
        parts.push([part.at, ...(await open(number, part))]);
      }
      return { parts, broken: broken && (await open(BROKEN, broken))[0] };
    },
  };
}

/** @param {string} name @param {string} what */
const damaged = (name, what) => failed(name, `${what}; it stays as it is, deletePersisted removes it`);

/**
 * Encrypts and decrypts by AES-GCM, if there is a key. Each text is bound to the session's name and its own number; 0 is the description's.
 * @param {string} name @param {EncryptionKey | undefined} key
 */
function createSeal(name, key) {
  /** @param {number | string} id @param {Uint8Array<ArrayBuffer>} iv */
  const algorithm = (id, iv) => {
    return { name: "AES-GCM", iv, additionalData: new TextEncoder().encode(`sandglass ${id} ${name}`) };
  };
  return {
    /** @param {number | string} id @param {StoredBody} body @returns {Promise<StoredBody | Sealed | Checked>} */
    async close(id, body) {
      if (!key) return body instanceof Blob ? { blob: body, sha256: await sha256(body) } : body;
      const iv = crypto.getRandomValues(new Uint8Array(12));
      const [kind, data] =
        typeof body === "string"
          ? /** @type {const} */ (["string", codes(body)])
          : body instanceof Blob
            ? /** @type {const} */ (["blob", await body.arrayBuffer()])
            : /** @type {const} */ (["bytes", /** @type {BufferSource} */ (body)]);
      return { kind, iv, data: await crypto.subtle.encrypt(algorithm(id, iv), /** @type {any} */ (key), data) };
    },
    /** @param {number} id @param {Uint8Array<ArrayBuffer>} bytes @returns {Promise<StoredEnded["journal"]>} */
    async closeBytes(id, bytes) {
      if (key) return /** @type {Sealed} */ (await this.close(id, bytes));
      return { bytes, sha256: await crypto.subtle.digest("SHA-256", bytes) };
    },
    /** @param {number | string} id @param {StoredBody | Sealed | Checked} body @returns {Promise<StoredBody>} */
    async open(id, body) {
      try {
        if (!key && (typeof body === "string" || body instanceof Uint8Array)) return body;
        if (!key && typeof body === "object" && "blob" in body && isSame(body.sha256, await sha256(body.blob)))
          return body.blob;
        const { kind, iv, data } = /** @type {Sealed} */ (body);
        const plain = await crypto.subtle.decrypt(algorithm(id, new Uint8Array(iv)), /** @type {any} */ (key), data);
        if (kind === "string") return textOf(plain);
        return kind === "blob" ? new Blob([plain]) : new Uint8Array(plain);
      } catch {
        const what = key ? "its key is another one, or it is damaged" : "it is damaged";
        throw damaged(name, what);
      }
    },
  };
}

/**
 * A journal as one body: the length of its head (four bytes), the head as JSON, and the contents of its bodies.
 * @param {Ended} journal
 */
async function pack([text, ...bodies]) {
  /** @type {[kind: Sealed["kind"], bytes: number][]} */
  const kinds = [];
  /** @type {Uint8Array[]} */
  const parts = [];
  for (const body of bodies) {
    const isText = typeof body === "string";
    const buffer = isText ? codes(body).buffer : body instanceof Blob ? await body.arrayBuffer() : undefined;
    const bytes = buffer ? new Uint8Array(buffer) : /** @type {Uint8Array} */ (body);
    parts.push(bytes);
    kinds.push([isText ? "string" : body instanceof Blob ? "blob" : "bytes", bytes.length]);
  }
  const head = new TextEncoder().encode(JSON.stringify([text, kinds]));
  const size = new Uint8Array(4);
  new DataView(size.buffer).setUint32(0, head.length, true);
  return joined([size, head, ...parts]);
}

/** @param {Uint8Array} bytes @returns {Ended} */
function unpack(bytes) {
  let at = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const [text, kinds] = JSON.parse(new TextDecoder().decode(bytes.subarray(4, at)));
  const bodies = kinds.map((/** @type {[Sealed["kind"], number]} */ [kind, size]) => {
    const part = bytes.slice(at, (at += size));
    return kind === "string" ? textOf(part.buffer) : kind === "blob" ? new Blob([part]) : part;
  });
  return [text, ...bodies];
}

/** @param {Blob} blob */
const sha256 = async (blob) => crypto.subtle.digest("SHA-256", await blob.arrayBuffer());

/** @param {ArrayBuffer} one @param {ArrayBuffer} other */
function isSame(one, other) {
  const [bytes, others] = [new Uint8Array(one), new Uint8Array(other)];
  return bytes.length === others.length && bytes.every((byte, index) => byte === others[index]);
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  const whole = new Uint8Array(parts.reduce((total, { length }) => total + length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** The UTF-16 units of a string, which need not be well-formed. @param {string} text */
function codes(text) {
  const units = new Uint16Array(text.length);
  for (let index = 0; index < text.length; index++) units[index] = text.charCodeAt(index);
  return units;
}

/** @param {ArrayBuffer} data */
function textOf(data) {
  const units = new Uint16Array(data);
  const parts = [];
  for (let at = 0; at < units.length; at += 8192) parts.push(String.fromCharCode(...units.subarray(at, at + 8192)));
  return parts.join("");
}

/** @param {string} name @param {string} what */
const failed = (name, what) => new SandboxError("persist_failed", `persist: the kept session "${name}": ${what}`);

/** @param {string} name @param {unknown} error */
const asFailure = (name, error) => (error instanceof SandboxError ? error : failed(name, why(error)));

/** @param {unknown} error */
const why = (error) => (error instanceof Error ? `${error.name}: ${error.message}` : String(error));

// Exact checkpoints: the interpreter's whole memory, as what has changed in it since the last one.
//
// All guests start from one snapshot, so that whatever JavaScript holds of Python has the same address in each. The memory
// of one, put into another, goes on there: generators, closures, aliases, modules. Beside it travel the files, the open
// ones and the references from Python to JavaScript, of which only the glue's own mean anything elsewhere.
//
// Where that cannot be done, because code was loaded into the interpreter, it is the values of the variables instead.
//
// A checkpoint is a `Blob`: the size of its header as a 32-bit number, the header (`Header`) as JSON, then pages of memory or
// values, then files.

/** @typedef {any} Module  what Emscripten makes; Pyodide's `_module` */
/**
 * @typedef {object} Header
 * @property {string} snapshot  what the guest had started from
 * @property {number} [values]  bytes that Python's `save_state` made; then there is no memory
 * @property {number} length  bytes of memory
 * @property {[first: number, count: number][]} pages  runs of the pages that follow
 * @property {(number | null)[]} references  for each slot the index of one of the glue's objects; -1 for another, null for none
 * @property {string[]} strings  that Pyodide has interned
 * @property {Files | null} files  what differs from the boot; null when it is as in the checkpoint before
 * @property {string[]} removed  files of the boot that are gone
 * @property {{ bytes: number, files: number }} uncounted  files that are not the user's
 * @property {string} folder  the current one
 * @property {{ fd: number, path: string, flags: number, position: number }[]} open
 */
/** @typedef {{ path: string, mode: number, time: number, size: number | null, link?: string }[]} Files  size null: a folder */

/** @import { createFiles } from "./files.js" */
/** @import { LostVariable } from "../pkg/sandglass.js" */

// Taken before any guest code runs: lockDown removes them, or guest code may replace them.
const { BigInt64Array, Blob, DataView, Map, MessageChannel, Promise, Set, TextDecoder, TextEncoder } = self;
const { Uint32Array, Uint8Array } = self;
const { parse, stringify } = JSON;
const now = performance.now.bind(performance);

/** Bytes of a page of wasm memory. */
export const PAGE = 65536;
/** Bytes of free memory that are taken at once, at most. */
const LARGEST = 1 << 20;
/** Pages to be saved that make it worth while to look for memory that is free, and pages that were needed once. */
const WORTH_CLEANING = 512;
/** How long the event loop waits at most, in milliseconds. */
const SLICE_MS = 1;
/** What the host or the boot puts there. */
const NOT_FILES = new Set(["/dev", "/proc"]);
/** Stands for an object of JavaScript that was only in the other guest. */
const GONE = (() => {
  const fail = () => {
    throw new Error("this JavaScript object is gone: it was made in a guest that has been replaced");
  };
  return new Proxy(fail, { get: fail, set: fail, has: fail, apply: fail, construct: fail, ownKeys: fail });
})();
/** Where Pyodide's interned strings begin; before it are constants. */
const FIRST_STRING = 7;

/** @typedef {{ cancelled: boolean, cancel?: () => void }} Job */

/**
 * @param {object} parts
 * @param {Module} parts.module
 * @param {(page: number) => bigint} parts.hash
 * @param {BigInt64Array} parts.original  the hashes of the snapshot's pages
 * @param {(page: number) => Blob} parts.originalPage  in the snapshot
 * @param {object[]} parts.roles  the glue's objects that Python may hold
 * @param {(bytes: number) => void} parts.grow  makes the memory at least so large
 * @param {(fixed: boolean) => void} parts.fixSize  keeps the memory from growing
 * @param {ReturnType<typeof createFiles>} parts.files
 * @param {{ findForeign: () => LostVariable[], saveState: () => [Uint8Array, LostVariable[]], loadState: (state: Uint8Array) => LostVariable[] }} parts.python
 */
export function createCheckpoints({
  module,
  hash,
  original,
  originalPage,
  roles,
  grow,
  fixSize,
  files: quota,
  python,
}) {
  const { FS, LDSO, wasmTable } = module;
  const role = new Map(roles.map((object, index) => [object, index]));
  const snapshot = `${original.length}:${original.reduce((sum, hash, page) => sum ^ (hash * BigInt(2 * page + 1)), 0n)}`;
  const boot = new Map(list(FS).map((file) => [line(file), file.path]));
  const libraries = () => Object.keys(LDSO.loadedLibsByName).length;
  const own = { libraries: libraries(), functions: wasmTable.length };
  /** Of the last checkpoint. @type {BigInt64Array | null} */
  let last = null;
  let lastFiles = "";
  /** The most pages that were in use. */
  let most = 0;
  /** Ends the checkpoint under way. */
  let cancel = () => {};
  const tick = new MessageChannel();

  const pause = () =>
    new Promise((resolve) => {
      tick.port1.onmessage = resolve;
      tick.port2.postMessage(null);
    });

  /** @returns {Job} */
  const begin = () => {
    /** @type {Job} */
    const job = { cancelled: false };
    cancel = () => {
      job.cancelled = true;
      job.cancel?.();
    };
    return job;
  };

  /** The hashes of all pages as they are; undefined when somebody else needs the thread. @param {Job} job */
  const hashAll = async (job) => {
    const hashes = new BigInt64Array(module.HEAPU8.length / PAGE);
    for (let page = 0; page < hashes.length;) {
      const ends = now() + SLICE_MS;
      do hashes[page] = hash(page);
      while (++page < hashes.length && (page % 8 || now() < ends));
      await pause();
      if (job.cancelled) return undefined;
    }
    return hashes;
  };

  /** Fills free memory with zeros, which need not be kept. @param {Job} job */
  const clean = async (job) => {
    /** @type {number[]} */
    const held = [];
    const release = () => {
      for (const address of held.splice(0)) module._free(address);
      fixSize(false);
    };
    job.cancel = release;
    fixSize(true);
    try {
      let ends = now() + SLICE_MS;
      for (let size = LARGEST; size >= PAGE;) {
        const address = module._malloc(size);
        if (!address) {
          size /= 4;
          continue;
        }
        held.push(address);
        module.HEAPU8.fill(0, address, address + size);
        if (now() < ends) continue;
        await pause();
        if (job.cancelled) return;
        ends = now() + SLICE_MS;
      }
    } finally {
      job.cancel = undefined;
      release();
    }
  };

  return {
    /** Gives the thread back to a request that has come in. */
    interrupt() {
      cancel();
    },

    /**
     * What changed since the last checkpoint, or since the snapshot, and which variables it does not hold. Undefined when it was
     * interrupted.
     * @param {boolean} full
     * @returns {Promise<{ blob: Blob, full: boolean, lost: LostVariable[], spent: boolean } | undefined>}
     */
    async save(full) {
      const job = begin();
      if (libraries() > own.libraries) {
        const [state, lost] = python.saveState();
        last = null;
        return { blob: pack({ values: state.length, pages: [] }, [state], true), full: true, lost, spent: false };
      }
      const slots = references();
      const lost = slots.includes(-1) || wasmTable.length > own.functions ? python.findForeign() : [];
      let hashes = await hashAll(job);
      if (!hashes) return undefined;
      const before = full ? null : last;
      let used = count(hashes);
      most = Math.max(most, used);
      if (changes(hashes, before ?? original).length > WORTH_CLEANING) {
        await clean(job);
        hashes = job.cancelled ? undefined : await hashAll(job);
        if (!hashes) return undefined;
        used = count(hashes);
      }
      /** @type {[number, number][]} */
      const pages = [];
      for (const page of changes(hashes, before ?? original)) {
        const run = pages.at(-1);
        if (run && run[0] + run[1] === page) run[1] += 1;
        else pages.push([page, 1]);
      }
      const memory = pages.map(([first, count]) => module.HEAPU8.subarray(first * PAGE, (first + count) * PAGE));
      const blob = pack({ pages }, memory, !before);
      last = hashes;
      const spent = most - used > WORTH_CLEANING && used < most / 2 && !hasHiddenFiles();
      return { blob, full: !before, lost, spent };
    },

    /**
     * Puts checkpoints in place, each on top of the one before it; returns the variables that could not be restored.
     * @param {Blob[]} chain  begins with a full one
     * @param {() => void} configure  what a guest needs whose memory is not replaced
     */
    async restore(chain, configure) {
      cancel = () => {}; // nothing interrupts this
      const found = /** @type {BigInt64Array} */ (await hashAll({ cancelled: false }));
      /** @type {Header | undefined} */
      let header;
      /** @type {{ files: Files, bytes: Uint8Array } | undefined} */
      let files;
      let state = new Uint8Array(0);
      const taken = new Set();
      for (const blob of chain) {
        const bytes = new Uint8Array(await blob.arrayBuffer());
        const size = new DataView(bytes.buffer).getUint32(0, true);
        header = /** @type {Header} */ (parse(new TextDecoder().decode(bytes.subarray(4, 4 + size))));
        if (header.snapshot !== snapshot) throw new Error("it was made by a guest of another snapshot");
        let at = 4 + size;
        if (header.values !== undefined) {
          state = bytes.subarray(at, at + header.values);
          at += header.values;
        } else if (header.length > module.HEAPU8.length) grow(header.length);
        for (const [first, count] of header.pages) {
          module.HEAPU8.set(bytes.subarray(at, at + count * PAGE), first * PAGE);
          for (let page = first; page < first + count; page++) taken.add(page);
          at += count * PAGE;
        }
        if (header.files) files = { files: header.files, bytes: bytes.subarray(at) };
      }
      if (!header) throw new Error("a checkpoint is empty");
      if (header.values === undefined) {
        // What this guest had changed and the other had not.
        for (let page = 0; page < found.length; page++) {
          if (taken.has(page) || found[page] === (original[page] ?? 0n)) continue;
          module.HEAPU8.set(new Uint8Array(await originalPage(page).arrayBuffer()), page * PAGE);
        }
        putStrings(header.strings);
        putReferences(header.references);
      }
      const { removed, uncounted, folder, open } = header;
      withPermissions(() => {
        quota.put(uncounted, () => {
          for (const path of removed) remove(path);
          if (files) putFiles(files.files, files.bytes);
        });
        if (FS.analyzePath(folder).exists) FS.chdir(folder);
        if (header.values === undefined) putOpen(open);
      });
      last = null;
      if (header.values === undefined) return [];
      configure();
      return python.loadState(state);
    },
  };

  /** Where `after` differs. Memory that nobody has used is zero, and so is its hash. @param {BigInt64Array} after @param {BigInt64Array} before */
  function changes(after, before) {
    /** @type {number[]} */
    const pages = [];
    after.forEach((hash, page) => {
      if (hash !== (before[page] ?? 0n)) pages.push(page);
    });
    return pages;
  }

  /** @template T @param {() => T} work */
  function withPermissions(work) {
    FS.ignorePermissions = true;
    try {
      return work();
    } finally {
      FS.ignorePermissions = false;
    }
  }

  /**
   * A checkpoint of these parts, and the files.
   * @param {Pick<Header, "pages" | "values">} head
   * @param {Uint8Array[]} parts
   * @param {boolean} full
   */
  function pack(head, parts, full) {
    return withPermissions(() => {
      const all = list(FS);
      const files = all.filter((file) => !boot.has(line(file)));
      const signature = files.map(line).join("\n");
      const changed = full || signature !== lastFiles;
      const contents = changed ? files.flatMap(({ path, size }) => (size === null ? [] : [FS.readFile(path)])) : [];
      const paths = new Set(all.map(({ path }) => path));
      /** @type {Header} */
      const header = {
        ...head,
        snapshot,
        length: module.HEAPU8.length,
        references: references(),
        strings: strings(),
        files: changed ? files : null,
        removed: [...boot.values()].filter((path) => !paths.has(path)).reverse(),
        uncounted: quota.free(),
        folder: FS.cwd(),
        open: open(),
      };
      lastFiles = signature;
      const json = new TextEncoder().encode(stringify(header));
      return new Blob(/** @type {BlobPart[]} */ ([new Uint32Array([json.length]), json, ...parts, ...contents]));
    });
  }

  function references() {
    /** @type {(number | null)[]} */
    const slots = [];
    for (let slot = FIRST_STRING; ; slot++) {
      let object;
      try {
        object = module.__hiwire_get(slot);
      } catch {
        return slots;
      }
      slots.push(object === null ? null : (role.get(object) ?? -1));
    }
  }

  /** @param {(number | null)[]} slots */
  function putReferences(slots) {
    slots.forEach((slot, index) => {
      const object = slot === null ? null : slot < 0 ? GONE : roles[slot];
      if (module.__hiwire_set(FIRST_STRING + index, object) < 0) throw new Error("a reference could not be set");
    });
  }

  function strings() {
    /** @type {string[]} */
    const interned = [];
    for (let index = FIRST_STRING; ; index++) {
      try {
        interned.push(module.__hiwire_immortal_get(index));
      } catch {
        return interned;
      }
    }
  }

  /** @param {string[]} interned */
  function putStrings(interned) {
    for (const string of interned.slice(strings().length)) module.__hiwire_immortal_add(string);
  }

  function open() {
    /** @type {Header["open"]} */
    const streams = [];
    FS.streams.forEach((/** @type {any} */ stream, /** @type {number} */ fd) => {
      if (stream && fd > 2) streams.push({ fd, path: stream.path, flags: stream.flags, position: stream.position });
    });
    return streams;
  }

  /** Whether a file is open that nobody finds any more: only this guest has it. */
  function hasHiddenFiles() {
    return FS.streams.some((/** @type {any} */ stream) => stream && stream.node !== FS.analyzePath(stream.path).object);
  }

  /** @param {Header["open"]} streams */
  function putOpen(streams) {
    const { O_CREAT, O_EXCL, O_TRUNC } = { O_CREAT: 64, O_EXCL: 128, O_TRUNC: 512 };
    for (const { fd, path, flags, position } of streams) {
      try {
        const stream = FS.open(path, flags & ~(O_CREAT | O_EXCL | O_TRUNC));
        stream.position = position;
        if (stream.fd !== fd) {
          FS.closeStream(stream.fd);
          FS.createStream(stream, fd);
        }
      } catch {
        // A pipe, or a file that was removed: using it is an ordinary error.
      }
    }
  }

  /** @param {Files} files @param {Uint8Array} bytes */
  function putFiles(files, bytes) {
    let at = 0;
    for (const { path, mode, time, size, link } of files) {
      if (link !== undefined) {
        remove(path);
        FS.symlink(link, path);
        continue;
      }
      if (size === null) {
        FS.mkdirTree(path);
        FS.chmod(path, mode);
      } else {
        FS.writeFile(path, bytes.subarray(at, at + size));
        FS.chmod(path, mode);
        at += size;
      }
      FS.utime(path, time, time);
    }
  }

  /** @param {string} path */
  function remove(path) {
    try {
      if (FS.isDir(FS.lstat(path).mode)) FS.rmdir(path);
      else FS.unlink(path);
    } catch {
      // It is gone, or in use: a file too many loses nothing.
    }
  }
}

/** How many pages are in use. @param {BigInt64Array} hashes */
const count = (hashes) => hashes.reduce((sum, hash) => sum + (hash ? 1 : 0), 0);

/** Everything in the file system, folders before what is in them. @param {any} FS @param {string} [folder] @returns {Files} */
function list(FS, folder = "/") {
  return FS.readdir(folder).flatMap((/** @type {string} */ name) => {
    const path = `${folder === "/" ? "" : folder}/${name}`;
    if (name === "." || name === ".." || NOT_FILES.has(path)) return [];
    const { mode, mtime, size } = FS.lstat(path);
    const time = Number(mtime);
    if (FS.isLink(mode)) return [{ path, mode, time, size: null, link: FS.readlink(path) }];
    if (FS.isDir(mode)) return [{ path, mode, time, size: null }, ...list(FS, path)];
    return FS.isFile(mode) ? [{ path, mode, time, size }] : [];
  });
}

/** @param {Files[number]} file */
const line = ({ path, mode, time, size, link }) =>
  `${path}\0${mode}\0${size === null ? "" : time}\0${size}\0${link ?? ""}`;

// Exact checkpoints: the interpreter's whole memory, saved as its changes since the checkpoint before.
//
// All guests start from one snapshot. So everything that JavaScript holds of Python has the same address in each guest,
// and memory that is copied to another guest goes on there: generators, closures, aliases, modules. A checkpoint also
// holds the files, the open descriptors, and the references from Python to JavaScript. Of these references, only those
// to the glue's own objects mean anything in another guest.
//
// A guest that has loaded code which no other guest has cannot be saved so. Its checkpoint holds the values of its
// variables instead.
//
// A checkpoint is a `Blob`: the size of its header as a 32-bit number, the header (`Header`) as JSON, then pages of memory or
// values, then files.
// Decisions: docs/internals/saving-and-restoring.md.

/** Emscripten's module; Pyodide's `_module`. @typedef {any} Module */
/**
 * @typedef {object} Header
 * @property {string} snapshot  the name of the snapshot that the guest started from
 * @property {number} [values]  the length of the state that Python's `save_state` made; with it, there is no memory
 * @property {number} length  bytes of memory
 * @property {boolean} usedJavaScript  true when code has used JavaScript, in this guest or in one that its state comes
 * from
 * @property {[first: number, count: number][]} pages  runs of pages, whose contents follow the header
 * @property {(number | null)[]} references  for each slot the index of the glue's object; -1 for any other object, null
 * for none
 * @property {string[]} strings  Pyodide's interned strings
 * @property {Loaded[]} libraries  the loaded shared objects
 * @property {Files | null} files  the files that differ from the boot; null when they are as in the checkpoint before
 * @property {string[]} removed  the boot's files that were removed
 * @property {Times[]} times  the times of all folders, and of files that differ from the boot
 * @property {{ bytes: number, files: number }} uncounted  the size of files that are not the user's
 * @property {string} folder  the current folder
 * @property {Open[]} open
 */
/**
 * @typedef {object} Entry
 * @property {string} path
 * @property {number} mode
 * @property {number | null} size  in bytes; null for a folder
 * @property {string} [link]
 * @property {number} [fd]  for a removed file that is still open: the first of its descriptors
 */
/** @typedef {Entry[]} Files */
/**
 * The times of a path, or of an entry's `fd`.
 * @typedef {[file: string | number, read: number, written: number, changed: number]} Times
 */
/**
 * @typedef {object} Open  an open descriptor
 * @property {number} fd
 * @property {number} flags
 * @property {number} position
 * @property {string} [path]  the path of its file
 * @property {number} [hidden]  the `fd` of its file, when the file has no path any more
 * @property {number} [shares]  the descriptor that this one duplicates
 *   Without any of the three, the descriptor cannot be opened in another guest.
 */

import { PAGE } from "./snapshot.js";

/** @import { createFiles } from "./files.js" */
/** @import { createLibraries, Loaded } from "./libraries.js" */
/** @import { Hash } from "./snapshot.js" */
/** @import { createDetector } from "./nondeterminism.js" */
/** @import { LostVariable } from "../pkg/sandglass.js" */

// Taken before any guest code runs: lockDown removes them, or guest code may replace them.
const { Blob, DataView, Float64Array, Map, MessageChannel, Promise, Set, TextDecoder, TextEncoder } = self;
const { Uint32Array, Uint8Array } = self;
const { parse, stringify } = JSON;
const { assign, freeze } = Object;
const now = performance.now.bind(performance);

/** The sizes of blocks that `clean` takes of the free memory, in bytes. */
const [LARGEST, SMALLEST] = [1 << 20, 1 << 16];
/** The number of changed pages from which looking for free memory is worth its time. */
const WORTH_CLEANING = (32 << 20) / PAGE;
/** The most bytes of memory of a guest that may be reused for another state. */
const MOST_REUSED = 128 << 20;
/** Pages that are hashed between two looks at the clock. */
const AT_ONCE = 64;
/** The length below which parts of a `Blob` are joined first, in bytes: each part costs time. */
const SHORT = 1 << 18;
/** The longest time for which the event loop waits, in milliseconds. */
const SLICE_MS = 1;
/** Folders without files. */
const NOT_FILES = new Set(["/proc"]);
/** Takes the place of an object of JavaScript that only the other guest had. */
const GONE = (() => {
  const fail = () => {
    throw new Error("this JavaScript object is gone: it was made in a guest that has been replaced");
  };
  return new Proxy(fail, { get: fail, set: fail, has: fail, apply: fail, construct: fail, ownKeys: fail });
})();
/** Emscripten's number of an input or output error. */
const EIO = 29;
/** Says that a checkpoint from the browser's store is not what was saved. */
const DAMAGED = "it is damaged";
/** The slot of Pyodide's first interned string. Constants are before it. */
const FIRST_STRING = 7;

/** @typedef {{ cancelled: boolean, cancel?: () => void }} Job */

/**
 * @param {object} parts
 * @param {Module} parts.module
 * @param {Hash} parts.hash
 * @param {string} parts.snapshot  the name of the snapshot that the guest started from
 * @param {Float64Array} parts.original  the hashes of the snapshot's pages
 * @param {(pages: number[]) => Promise<Uint8Array>} parts.readOriginal  reads pages of the snapshot
 * @param {object[]} parts.roles  the glue's objects that Python may hold
 * @param {ReturnType<typeof createDetector>} parts.detector
 * @param {(bytes: number) => void} parts.grow  makes the memory at least so large
 * @param {(fixed: boolean) => void} parts.fixSize  keeps the memory from growing
 * @param {ReturnType<typeof createFiles>} parts.files
 * @param {ReturnType<typeof createLibraries>} parts.libraries
 * @param {{ findForeign: (gone: number[]) => LostVariable[], saveState: () => [Uint8Array, LostVariable[]], loadState: (state: Uint8Array) => LostVariable[] }} parts.python
 */
export function createCheckpoints({
  module,
  hash,
  snapshot,
  original,
  readOriginal,
  roles,
  detector,
  grow,
  fixSize,
  files: quota,
  libraries,
  python,
}) {
  const { FS } = module;
  const role = new Map(roles.map((object, index) => [object, index]));
  const boot = new Map(listAll().map(({ file, line }) => [line, file.path]));
  const home = FS.cwd();
  const standard = FS.streams.slice(0, 3);
  /** Folders that hold expected files. @type {Set<string | number>} */
  const given = new Set();
  /** The operations of a descriptor that only the other guest could open: all of them fail, except closing it. */
  const dead = (() => {
    const fail = () => {
      throw new FS.ErrnoError(EIO);
    };
    return freeze({ getattr: fail, setattr: fail, llseek: fail, read: fail, write: fail, mmap: fail, msync: fail });
  })();
  /** The pages' hashes at the last checkpoint. @type {Float64Array | null} */
  let last = null;
  let lastFiles = "";
  /** The largest number of pages in use so far. */
  let most = 0;
  /** Cancels the checkpoint that is being made. */
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

  /** Hashes all pages. Returns undefined when a request needs the thread. @param {Job} job */
  const hashAll = async (job) => {
    const hashes = new Float64Array(module.HEAPU8.length / PAGE);
    for (let page = 0; page < hashes.length;) {
      const ends = now() + SLICE_MS;
      do hashes[page] = hash(page * PAGE, PAGE);
      while (++page < hashes.length && (page % AT_ONCE || now() < ends));
      await pause();
      if (job.cancelled) return undefined;
    }
    return hashes;
  };

  /** Fills free memory with zeros, which a checkpoint leaves out. @param {Job} job */
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
      for (let size = LARGEST; size >= SMALLEST;) {
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
    /** Cancels the checkpoint that is being made, because a request needs the thread. */
    interrupt() {
      cancel();
    },

    /** Returns true when a checkpoint would hold all that code can find here, so that another guest could go on from it exactly. */
    get isExact() {
      if (!libraries.isEmpty && (libraries.hasOthers || !libraries.record)) return false;
      return FS.streams.every(
        (/** @type {any} */ stream, /** @type {number} */ fd) =>
          !stream || fd <= 2 || isKept(stream) || pathOf(stream) !== undefined,
      );
    },

    /** Returns true when code has left only memory and files here, which `restore` can replace. */
    get isReusable() {
      if (detector.usedJavaScript || detector.hasCallbacks || !libraries.isEmpty || libraries.hasOthers) return false;
      // Memory never shrinks.
      if (module.HEAPU8.length > MOST_REUSED) return false;
      if (!standard.every((/** @type {any} */ stream, /** @type {number} */ fd) => FS.streams[fd] === stream))
        return false;
      const lines = new Set(listAll().map(({ line }) => line));
      return [...boot.keys()].every((line) => lines.has(line));
    },

    /**
     * Declares files that every guest has which takes over, or gets before it does. Checkpoints leave them out.
     * @param {string[]} paths
     */
    expect(paths) {
      const known = new Set(paths);
      for (const path of paths) given.add(path.slice(0, path.lastIndexOf("/")));
      for (const { file, line } of listAll()) if (known.has(file.path)) boot.set(line, file.path);
    },

    /**
     * Saves what has changed since the last checkpoint, or since the snapshot. `lost` names the variables that the
     * checkpoint does not hold. Resolves to undefined when it was cancelled.
     * @param {boolean} full
     * @returns {Promise<{ blob: Blob, full: boolean, lost: LostVariable[], spent: boolean } | undefined>}
     */
    async save(full) {
      const job = begin();
      if (!libraries.isEmpty && !libraries.record) {
        const [state, lost] = python.saveState();
        last = null;
        const blob = pack({ values: state.length, pages: [], references: references() }, [state], true);
        return { blob, full: true, lost, spent: false };
      }
      const slots = references();
      const gone = onlyHere();
      const lost = slots.includes(-1) || libraries.hasOthers || gone.length > 0 ? python.findForeign(gone) : [];
      let hashes = await hashAll(job);
      if (!hashes) return undefined;
      const before = full ? null : last;
      let used = count(hashes);
      most = Math.max(most, used);
      let pages = changes(hashes, before ?? original);
      if (sum(pages) > WORTH_CLEANING) {
        await clean(job);
        hashes = job.cancelled ? undefined : await hashAll(job);
        if (!hashes) return undefined;
        used = count(hashes);
        pages = changes(hashes, before ?? original);
      }
      const memory = pages.map(([first, count]) => module.HEAPU8.subarray(first * PAGE, (first + count) * PAGE));
      const blob = pack({ pages, references: slots }, gather(memory), !before);
      last = hashes;
      const spent = most - used > WORTH_CLEANING && used < most / 2;
      return { blob, full: !before, lost, spent };
    },

    /**
     * Puts checkpoints in place, each on top of the one before. Returns the variables that could not be restored.
     * @param {Blob[]} chain  begins with a full one
     * @param {boolean} isUsed  whether the guest has had another state before; see `isReusable`
     * @param {() => void} configure  configures a guest whose memory is not replaced
     */
    async restore(chain, isUsed, configure) {
      cancel = () => {}; // a restore runs to its end
      const found = /** @type {Float64Array} */ (await hashAll({ cancelled: false }));
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
        if (at + sum(header.pages) * PAGE + filesOf(header) !== bytes.length) throw new Error(DAMAGED);
        for (const [first, count] of header.pages) {
          module.HEAPU8.set(bytes.subarray(at, at + count * PAGE), first * PAGE);
          for (let page = first; page < first + count; page++) taken.add(page);
          at += count * PAGE;
        }
        if (header.files) files = { files: header.files, bytes: bytes.subarray(at) };
      }
      if (!header) throw new Error("a checkpoint is empty");
      if (isUsed && header.values !== undefined) throw new Error("the guest has variables of another state");
      if (header.values === undefined) {
        // Pages that this guest has changed, and the saved one has not: the snapshot has their content.
        const stale = changes(found, original)
          .flatMap(([first, count]) => Array.from({ length: count }, (_, index) => first + index))
          .filter((page) => !taken.has(page));
        const pages = stale.length > 0 ? await readOriginal(stale) : new Uint8Array(0);
        stale.forEach((page, index) =>
          module.HEAPU8.set(pages.subarray(index * PAGE, (index + 1) * PAGE), page * PAGE),
        );
        putStrings(header.strings);
        putReferences(header.references);
        if (isUsed) {
          for (let index = references().length; index-- > header.references.length;) {
            module.__hiwire_set(FIRST_STRING + index, null);
          }
          most = 0;
        }
        libraries.replay(header.libraries);
      }
      const { removed, uncounted, folder, open, times } = header;
      const memory = header.values === undefined;
      let isWhole = false;
      withPermissions(() => {
        quota.put(uncounted, () => {
          if (isUsed) removeOwn();
          for (const path of removed) remove(path);
          const hidden = files ? putFiles(files.files, files.bytes) : new Map();
          if (memory) isWhole = putOpen(open, hidden);
          putTimes(times, hidden); // last, since the steps above change some times
        });
        if (FS.analyzePath(folder).exists) FS.chdir(folder);
      });
      last = null;
      const { references: slots, usedJavaScript } = header;
      const exact = isWhole && slots.every((slot) => slot === null || slot >= 0);
      detector.restored({ usedJavaScript, exact });
      if (memory) return [];
      configure();
      return python.loadState(state);
    },
  };

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
   * Makes a checkpoint of these parts and of the files.
   * @param {Pick<Header, "pages" | "values" | "references">} head
   * @param {Uint8Array[]} parts
   * @param {boolean} full
   */
  function pack(head, parts, full) {
    return withPermissions(() => {
      const all = listAll();
      const own = all.filter(({ line }) => !boot.has(line));
      const { streams, hidden } = open();
      const kept = [...own, ...hidden];
      const signature = kept.map(({ line }) => line).join("\n");
      const changed = full || signature !== lastFiles;
      const contents = changed ? kept.flatMap(({ file, node }) => (file.size === null ? [] : [bytesOf(node)])) : [];
      const paths = new Set(all.map(({ file }) => file.path));
      /** @type {Header} */
      const header = {
        ...head,
        snapshot,
        length: module.HEAPU8.length,
        usedJavaScript: detector.usedJavaScript,
        strings: strings(),
        libraries: libraries.record ?? [],
        files: changed ? kept.map(({ file }) => file) : null,
        removed: [...boot.values()].filter((path) => !paths.has(path)).reverse(),
        times: [timesOf("/", FS.root), ...timesOfAll(all), ...hidden.map(({ file, node }) => timesOf(file.fd, node))],
        uncounted: quota.free(),
        folder: FS.cwd(),
        open: streams,
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

  /**
   * Puts the strings where the memory refers to them. A guest that is reused may have more of them, which no memory refers to.
   * @param {string[]} interned
   */
  function putStrings(interned) {
    const known = strings();
    if (interned.some((string, index) => string !== (known[index] ?? string)))
      throw new Error("the guest has strings of its own");
    for (const string of interned.slice(known.length)) module.__hiwire_immortal_add(string);
  }

  /** Lists the descriptors, and the files that have no path any more. */
  function open() {
    /** @type {Open[]} */
    const streams = [];
    /** @type {Listed[]} */
    const hidden = [];
    const [duplicated, files] = [new Map(), new Map()];
    FS.streams.forEach((/** @type {any} */ stream, /** @type {number} */ fd) => {
      if (!stream || fd <= 2) return;
      const { flags, position, shared, node } = stream;
      const shares = duplicated.get(shared);
      const path = pathOf(stream);
      if (shares === undefined) duplicated.set(shared, fd);
      if (shares === undefined && path === undefined && isKept(stream) && !files.has(node)) {
        files.set(node, fd);
        hidden.push(listed(node, "", { fd }, quota.version(node)));
      }
      streams.push({ fd, flags, position, path, hidden: files.get(node), shares });
    });
    return { streams, hidden };
  }

  /** Returns the current path of a descriptor's file. @param {any} stream @returns {string | undefined} */
  function pathOf({ node, stream_ops }) {
    if (stream_ops === dead) return undefined;
    try {
      const path = FS.getPath(node);
      return FS.lookupPath(path).node === node ? path : undefined;
    } catch {
      return undefined;
    }
  }

  /** Returns true when a checkpoint holds the contents of a descriptor's file. @param {any} stream */
  function isKept({ node, stream_ops }) {
    return stream_ops !== dead && FS.isFile(node.mode) && node.node_ops === FS.filesystems.MEMFS.ops_table.file.node;
  }

  /** Lists the descriptors that no other guest can open, such as a pipe's. @returns {number[]} */
  function onlyHere() {
    return FS.streams.flatMap((/** @type {any} */ stream, /** @type {number} */ fd) =>
      stream && stream.stream_ops !== dead && !isKept(stream) && pathOf(stream) === undefined ? [fd] : [],
    );
  }

  /** Closes and removes everything that was not there at the boot. */
  function removeOwn() {
    FS.streams.forEach((/** @type {any} */ stream, /** @type {number} */ fd) => {
      if (stream && fd > 2) FS.closeStream(fd);
    });
    FS.chdir(home);
    for (const { file, line } of listAll().reverse()) if (!boot.has(line)) remove(file.path);
    if (listAll().some(({ line }) => !boot.has(line))) throw new Error("a file of another state cannot be removed");
  }

  /**
   * Opens the descriptors again. Returns true when it could open all.
   * @param {Open[]} streams @param {Map<number, any>} files  those without a path
   */
  function putOpen(streams, files) {
    let all = true;
    const { O_CREAT, O_EXCL, O_TRUNC } = { O_CREAT: 64, O_EXCL: 128, O_TRUNC: 512 };
    for (const { fd, path, hidden, shares, flags, position } of streams) {
      try {
        const original = shares === undefined ? undefined : FS.getStreamChecked(shares);
        const stream = original
          ? FS.dupStream(original)
          : FS.open(path ?? files.get(/** @type {number} */ (hidden)), flags & ~(O_CREAT | O_EXCL | O_TRUNC));
        stream.position = position;
        if (stream.fd !== fd) {
          FS.closeStream(stream.fd);
          FS.createStream(stream, fd);
        }
      } catch {
        // For instance a pipe. Its number stays taken, because Python would write to any other file of this number.
        all = false;
        const { node } = FS.lookupPath("/dev/null");
        FS.createStream({ node, path: "/dev/null", flags, seekable: true, position, stream_ops: dead }, fd);
      }
    }
    return all;
  }

  /**
   * Writes the files. Returns those without a path, by the first of their descriptors.
   * @param {Files} files @param {Uint8Array} bytes
   */
  function putFiles(files, bytes) {
    const hidden = new Map();
    let at = 0;
    for (const { path, mode, size, link, fd } of files) {
      if (link !== undefined) {
        remove(path);
        FS.symlink(link, path);
        continue;
      }
      if (size === null) {
        FS.mkdirTree(path);
        FS.chmod(path, mode);
        continue;
      }
      const place = fd === undefined ? path : unusedPath();
      FS.writeFile(place, bytes.subarray(at, at + size));
      FS.chmod(place, mode);
      at += size;
      if (fd === undefined) continue;
      hidden.set(fd, FS.lookupPath(place).node);
      FS.unlink(place);
    }
    return hidden;
  }

  /** @param {Listed[]} all */
  function timesOfAll(all) {
    const kept = all.filter(({ node, line }) => FS.isDir(node.mode) || !boot.has(line));
    return kept.map(({ file, node }) => timesOf(file.path, node));
  }

  /** @param {Times[]} times @param {Map<number, any>} hidden */
  function putTimes(times, hidden) {
    for (const [file, atime, mtime, ctime] of times) {
      // The folder may hold more files than before. Its newer time makes Python's importer look again.
      if (given.has(file)) continue;
      try {
        const node = typeof file === "number" ? hidden.get(file) : FS.lookupPath(file).node;
        assign(node ?? {}, { atime, mtime, ctime });
      } catch {
        // The file could not be put in place, so it has no times.
      }
    }
  }

  function unusedPath() {
    let number = 0;
    while (FS.analyzePath(`/removed${number}`, true).exists) number += 1;
    return `/removed${number}`;
  }

  function listAll() {
    return list(FS, quota.version);
  }

  /** @param {string} path */
  function remove(path) {
    try {
      if (FS.isDir(FS.lstat(path).mode)) FS.rmdir(path);
      else FS.unlink(path);
    } catch {
      // The file is gone, or in use. A file too many does no harm.
    }
  }
}

/** The bytes of a checkpoint's files. @param {Header} header */
const filesOf = ({ files }) => (files ?? []).reduce((sum, { size }) => sum + (size ?? 0), 0);

/** Counts the pages in use. @param {Float64Array} hashes */
function count(hashes) {
  let used = 0;
  for (let page = 0; page < hashes.length; page++) if (hashes[page] !== 0) used += 1;
  return used;
}

/**
 * Lists the runs of pages in which `after` differs. Unused memory is zero, and so is its hash.
 * @param {Float64Array} after @param {Float64Array} before
 */
function changes(after, before) {
  /** @type {[first: number, count: number][]} */
  const runs = [];
  let end = -1;
  for (let page = 0; page < after.length; page++) {
    if (after[page] === (page < before.length ? before[page] : 0)) continue;
    if (page === end) runs[runs.length - 1][1] += 1;
    else runs.push([page, 1]);
    end = page + 1;
  }
  return runs;
}

/** Counts the pages in runs. @param {[first: number, count: number][]} runs */
const sum = (runs) => runs.reduce((sum, [, count]) => sum + count, 0);

/** Joins short parts, so that there are fewer. @param {Uint8Array[]} parts */
function gather(parts) {
  /** @type {Uint8Array[]} */
  const gathered = [];
  for (let index = 0; index < parts.length;) {
    const begin = index;
    let size = 0;
    while (index < parts.length && parts[index].length < SHORT) size += parts[index++].length;
    if (size > 0) {
      const joined = new Uint8Array(size);
      let at = 0;
      for (const part of parts.slice(begin, index)) {
        joined.set(part, at);
        at += part.length;
      }
      gathered.push(joined);
    }
    if (index < parts.length) gathered.push(parts[index++]);
  }
  return gathered;
}

/** @typedef {{ file: Entry, node: any, line: string }} Listed  `line` differs when the file does */

/**
 * Lists the whole file system, each folder before its contents.
 * @param {any} FS @param {(node: any) => number} version @param {string} [folder] @returns {Listed[]}
 */
function list(FS, version, folder = "/") {
  return FS.readdir(folder).flatMap((/** @type {string} */ name) => {
    const path = `${folder === "/" ? "" : folder}/${name}`;
    if (name === "." || name === ".." || NOT_FILES.has(path)) return [];
    const { node } = FS.lookupPath(path);
    const { mode } = node;
    if (FS.isLink(mode)) return [listed(node, path, { size: null, link: node.link })];
    if (FS.isDir(mode)) return [listed(node, path, { size: null }), ...list(FS, version, path)];
    return FS.isFile(mode) ? [listed(node, path, {}, version(node))] : [];
  });
}

/** @param {any} node @param {string} path @param {Partial<Entry>} more @param {number} [version] @returns {Listed} */
function listed(node, path, more, version = 0) {
  const file = { path, mode: node.mode, size: node.usedBytes, ...more };
  const { mode, size, link, fd } = file;
  const when = size === null ? "" : `${node.mtime}\0${version}`;
  return { file, node, line: `${path}\0${mode}\0${when}\0${size}\0${link ?? ""}\0${fd ?? ""}` };
}

/** @param {string | number | undefined} file @param {any} node @returns {Times} */
const timesOf = (file, { atime, mtime, ctime }) => [file ?? "", atime, mtime, ctime];

/** The contents of a file, as a view: copy them before the file changes. @param {any} node @returns {Uint8Array} */
const bytesOf = (node) => node.contents.subarray(0, node.usedBytes);

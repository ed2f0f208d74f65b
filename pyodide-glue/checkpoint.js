// Exact checkpoints: the interpreter's whole memory, as what has changed in it since the last one.
//
// All guests start from one snapshot, so that whatever JavaScript holds of Python has the same address in each. The memory
// of one, put into another, goes on there: generators, closures, aliases, modules. Beside it travel the files, the open
// ones and the references from Python to JavaScript, of which only the glue's own mean anything elsewhere.
//
// A checkpoint is a `Blob`: the size of its header as a 32-bit number, the header (`Header`) as JSON, pages of memory, files.

/** @typedef {any} Module  what Emscripten makes; Pyodide's `_module` */
/**
 * @typedef {object} Header
 * @property {string} snapshot  what the guest had started from
 * @property {number} length  bytes of memory
 * @property {[first: number, count: number][]} pages  runs of the pages that follow
 * @property {(number | null)[]} references  for each slot the index of one of the glue's objects; -1 for another, null for none
 * @property {string[]} strings  that Pyodide has interned
 * @property {Files | null} files  what differs from the boot; null when it is as in the checkpoint before
 * @property {string[]} removed  files of the boot that are gone
 * @property {string} folder  the current one
 * @property {{ fd: number, path: string, flags: number, position: number }[]} open
 */
/** @typedef {{ path: string, mode: number, time: number, size: number | null, link?: string }[]} Files  size null: a folder */

// Taken before any guest code runs: lockDown removes them, or guest code may replace them.
const { BigInt64Array, Blob, DataView, Map, MessageChannel, Promise, Set, TextDecoder, TextEncoder } = self;
const { Uint32Array, Uint8Array } = self;
const { parse, stringify } = JSON;
const now = performance.now.bind(performance);

/** Bytes of a page of wasm memory. */
export const PAGE = 65536;
/** How long the event loop waits at most, in milliseconds. */
const SLICE_MS = 1;
/** What the host or the boot puts there. */
const NOT_FILES = new Set(["/dev", "/proc"]);
/** Where Pyodide's interned strings begin; before it are constants. */
const FIRST_STRING = 7;

/**
 * @param {object} parts
 * @param {Module} parts.module
 * @param {(page: number) => bigint} parts.hash
 * @param {BigInt64Array} parts.original  the hashes of the snapshot's pages
 * @param {(page: number) => Blob} parts.originalPage  in the snapshot
 * @param {object[]} parts.roles  the glue's objects that Python may hold
 * @param {(bytes: number) => void} parts.grow  makes the memory at least so large
 */
export function createCheckpoints({ module, hash, original, originalPage, roles, grow }) {
  const { FS } = module;
  const role = new Map(roles.map((object, index) => [object, index]));
  const snapshot = `${original.length}:${original.reduce((sum, hash, page) => sum ^ (hash * BigInt(2 * page + 1)), 0n)}`;
  const boot = new Map(list(FS).map((file) => [line(file), file.path]));
  /** Of the last checkpoint. @type {BigInt64Array | null} */
  let last = null;
  let lastFiles = "";
  /** Ends the checkpoint under way. */
  let cancel = () => {};
  const tick = new MessageChannel();

  const pause = () =>
    new Promise((resolve) => {
      tick.port1.onmessage = resolve;
      tick.port2.postMessage(null);
    });

  /** The hashes of all pages as they are; undefined when somebody else needs the thread. @param {{ cancelled: boolean }} job */
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

  return {
    /** Gives the thread back to a request that has come in. */
    interrupt() {
      cancel();
    },

    /**
     * What changed since the last checkpoint, or since the snapshot. Undefined when it was interrupted.
     * @param {boolean} full
     */
    async save(full) {
      const job = { cancelled: false };
      cancel = () => (job.cancelled = true);
      const hashes = await hashAll(job);
      if (!hashes) return undefined;
      const before = full || !last ? original : last;
      /** @type {[number, number][]} */
      const runs = [];
      /** @type {Uint8Array[]} */
      const parts = [];
      hashes.forEach((hash, page) => {
        // Memory that nobody has used is zero, whose hash is.
        if (hash === (before[page] ?? 0n)) return;
        const run = runs.at(-1);
        if (run && run[0] + run[1] === page) run[1] += 1;
        else runs.push([page, 1]);
      });
      for (const [first, count] of runs) parts.push(module.HEAPU8.subarray(first * PAGE, (first + count) * PAGE));
      FS.ignorePermissions = true;
      const all = list(FS);
      const files = all.filter((file) => !boot.has(line(file)));
      const signature = files.map(line).join("\n");
      const changed = full || !last || signature !== lastFiles;
      if (changed) {
        for (const { path, size } of files) if (size !== null) parts.push(FS.readFile(path));
      }
      const paths = new Set(all.map(({ path }) => path));
      /** @type {Header} */
      const header = {
        snapshot,
        length: module.HEAPU8.length,
        pages: runs,
        references: references(),
        strings: strings(),
        files: changed ? files : null,
        removed: [...boot.values()].filter((path) => !paths.has(path)).reverse(),
        folder: FS.cwd(),
        open: open(),
      };
      const json = new TextEncoder().encode(stringify(header));
      const blob = new Blob(/** @type {BlobPart[]} */ ([new Uint32Array([json.length]), json, ...parts]));
      FS.ignorePermissions = false;
      last = hashes;
      lastFiles = signature;
      return blob;
    },

    /**
     * Puts checkpoints in place, each on top of the one before it.
     * @param {Blob[]} chain  begins with a full one
     */
    async restore(chain) {
      const own = /** @type {BigInt64Array} */ (await hashAll({ cancelled: false }));
      /** @type {Header | undefined} */
      let header;
      /** @type {{ files: Files, bytes: Uint8Array } | undefined} */
      let files;
      const taken = new Set();
      for (const blob of chain) {
        const bytes = new Uint8Array(await blob.arrayBuffer());
        const size = new DataView(bytes.buffer).getUint32(0, true);
        header = /** @type {Header} */ (parse(new TextDecoder().decode(bytes.subarray(4, 4 + size))));
        if (header.snapshot !== snapshot) throw new Error("it was made by a guest of another snapshot");
        if (header.length > module.HEAPU8.length) grow(header.length);
        let at = 4 + size;
        for (const [first, count] of header.pages) {
          module.HEAPU8.set(bytes.subarray(at, at + count * PAGE), first * PAGE);
          for (let page = first; page < first + count; page++) taken.add(page);
          at += count * PAGE;
        }
        if (header.files) files = { files: header.files, bytes: bytes.subarray(at) };
      }
      if (!header) throw new Error("a checkpoint is empty");
      // What this guest had changed and the other had not.
      for (let page = 0; page < own.length; page++) {
        if (taken.has(page) || own[page] === (original[page] ?? 0n)) continue;
        module.HEAPU8.set(new Uint8Array(await originalPage(page).arrayBuffer()), page * PAGE);
      }
      putStrings(header.strings);
      putReferences(header.references);
      FS.ignorePermissions = true;
      for (const path of header.removed) remove(path);
      if (files) putFiles(files.files, files.bytes);
      FS.chdir(header.folder);
      putOpen(header.open);
      FS.ignorePermissions = false;
      last = null;
    },
  };

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
      const object = slot === null ? null : slot < 0 ? Object.freeze({ gone: true }) : roles[slot];
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

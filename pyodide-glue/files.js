// Bounds the guest's files, and finds the files that an execution changed.
//
// JavaScript holds the files' contents, outside of the wasm heap that `memoryLimit` bounds. So this module wraps the
// operations of Emscripten's in-memory file system, through which every way to a file goes. Beyond a limit, Python gets
// an `OSError`. Python can reach JavaScript, but cannot remove the wrappers: the tables that hold them are frozen.
//
// Nothing is noted until a file changes, so an execution that changes none costs nothing.

import { decodeName, encodeName, showName } from "./file-names.js";

/** @typedef {any} Node  a file or folder of Emscripten's */
/** @typedef {{ path: string, change: "created" | "modified" | "deleted", size: number }} FileChange */

// Taken before any guest code runs: it may replace them.
const { Map, Set, WeakMap } = self;
const { defineProperty, freeze, keys } = Object;
const { max } = Math;

// Emscripten's error numbers.
const ENAMETOOLONG = 37;
const EAGAIN = 6;
const EILSEQ = 25;
const EINVAL = 28;
const ENOSPC = 51;
/** The longest name and path in bytes, as on Linux. */
const LONGEST_NAME = 255;
const LONGEST_PATH = 4096;
/** The most pieces of 8 KiB that a pipe may hold. */
const LARGEST_PIPE = 9;
/** The most changed files that are reported, and the most characters of their paths. */
const MOST_CHANGES = 1000;
const MOST_CHARS = 100_000;
/** The folder in which Python caches the modules that it imports. */
const IGNORED = "__pycache__";

/** @param {any} module  Pyodide's `_module`, in the working folder */
export function createFiles({ FS }) {
  const { MEMFS } = FS.filesystems;
  const { dir, file, link } = MEMFS.ops_table;
  const folder = FS.lookupPath(FS.cwd()).node;
  /** The streams of descriptors 0 to 2. */
  const standard = FS.streams.slice(0, 3);

  let mostBytes = Infinity;
  let mostFiles = Infinity;
  /** The size of files that do not count: those that Python itself needs. */
  let free = { bytes: 0, files: 0 };
  /** Upper bounds of the files' size and number. Removed files are subtracted only when a bound would be exceeded. */
  let bytes = 0;
  let files = 0;

  /** The changes of the current execution, if any were made. @type {{ before: Map<string, Node>, touched: Set<Node> } | null} */
  let changes = null;
  let watching = false;
  /** A number for each written file, new with every write. @type {WeakMap<Node, number>} */
  const versions = new WeakMap();
  let lastVersion = 0;
  /** The number of changes so far, of any file or folder. */
  let edits = 0;

  const refuse = (/** @type {number} */ errno) => {
    throw new FS.ErrnoError(errno);
  };

  /** Counts all files anew, including open files without a name. */
  const count = () => {
    const seen = new Set();
    const todo = [FS.root];
    for (const stream of FS.streams) if (stream?.node) todo.push(stream.node);
    bytes = files = 0;
    for (let node = todo.pop(); node; node = todo.pop()) {
      if (seen.has(node)) continue;
      seen.add(node);
      files += 1;
      if (FS.isFile(node.mode)) bytes += node.usedBytes;
      // `/dev` and `/proc` hold no files of MEMFS.
      else if (FS.isDir(node.mode) && node.node_ops === dir.node)
        for (const name of keys(node.contents)) todo.push(node.contents[name]);
    }
    bytes -= free.bytes;
    files -= free.files;
  };

  /** @param {number} more */
  const needBytes = (more) => {
    if (!(bytes + more <= mostBytes)) count();
    if (!(bytes + more <= mostBytes)) refuse(ENOSPC);
  };

  /** Checks that a folder can take an entry of this name. @param {Node} parent @param {string} name */
  const needPlace = (parent, name) => {
    const bytes = encodeName(name);
    if (bytes.length > LONGEST_NAME) refuse(ENAMETOOLONG);
    // A name that JavaScript has made up. Python would read it as another.
    if (!name.isWellFormed() && decodeName(bytes) !== name) refuse(EILSEQ);
    // Emscripten keeps a folder's entries as properties of an object, where this name has another meaning.
    if (name === "__proto__") refuse(EINVAL);
    let length = bytes.length;
    for (let node = parent; node !== node.parent && length <= LONGEST_PATH; node = node.parent)
      length += encodeName(node.name).length + 1;
    if (length > LONGEST_PATH) refuse(ENAMETOOLONG);
  };
  const needFile = () => {
    if (files >= mostFiles) count();
    if (files >= mostFiles) refuse(ENOSPC);
  };

  /** Lists the files in the working folder, by path. */
  const list = () => {
    /** @type {Map<string, Node>} */
    const found = new Map();
    const todo = [{ path: "", node: folder }];
    for (let at = todo.pop(); at; at = todo.pop()) {
      const { contents } = at.node;
      for (const name of keys(contents)) {
        const node = contents[name];
        const path = at.path + name;
        if (!FS.isDir(node.mode)) found.set(path, node);
        else if (name !== IGNORED) todo.push({ path: `${path}/`, node });
      }
    }
    return found;
  };

  /**
   * Notes the files before the first change below the working folder. Call it before a change in this folder.
   * @param {Node} node
   */
  const note = (node) => {
    edits += 1;
    if (!watching) return;
    for (let at = node; at !== folder; at = at.parent) if (at === at.parent) return;
    changes ??= { before: list(), touched: new Set() };
  };
  /** @param {Node} node */
  const touch = (node) => {
    note(node);
    changes?.touched.add(node);
  };

  /**
   * Writes to a file, or changes its size.
   * @template T @param {Node} node @param {number} size  the size in bytes that it will have @param {() => T} work
   */
  const write = (node, size, work) => {
    const before = node.usedBytes;
    if (size > before) needBytes(size - before);
    touch(node);
    versions.set(node, ++lastVersion);
    try {
      return work();
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      return /** @type {never} */ (refuse(ENOSPC)); // the browser has no memory for it
    } finally {
      bytes += node.usedBytes - before;
    }
  };

  const { mknod, symlink, rename, unlink, rmdir } = dir.node;
  const { setattr } = file.node;
  const writeStream = file.stream.write;
  const makeFile =
    (/** @type {typeof mknod} */ make) =>
    (/** @type {Node} */ parent, /** @type {string} */ name, /** @type {any[]} */ ...rest) => {
      needPlace(parent, name);
      needFile();
      note(parent);
      const node = make(parent, name, ...rest);
      files += 1;
      return node;
    };
  const makeLink = makeFile(symlink);
  Object.assign(dir.node, {
    mknod: makeFile(mknod),
    symlink(/** @type {Node} */ parent, /** @type {string} */ name, /** @type {string} */ target) {
      if (encodeName(target).length > LONGEST_PATH) refuse(ENAMETOOLONG);
      return makeLink(parent, name, target);
    },
    rename(/** @type {Node} */ node, /** @type {Node} */ to, /** @type {string} */ name) {
      needPlace(to, name);
      note(node.parent);
      note(to);
      rename(node, to, name);
    },
    unlink(/** @type {Node} */ parent, /** @type {string} */ name) {
      note(parent);
      unlink(parent, name);
    },
    rmdir(/** @type {Node} */ parent, /** @type {string} */ name) {
      note(parent);
      rmdir(parent, name);
    },
  });
  file.node.setattr = (/** @type {Node} */ node, /** @type {any} */ attr) => {
    edits += 1;
    return attr.size === undefined ? setattr(node, attr) : write(node, attr.size, () => setattr(node, attr));
  };
  for (const { node: operations } of [dir, link]) {
    const set = operations.setattr;
    operations.setattr = (/** @type {Node} */ node, /** @type {any} */ attr) => {
      edits += 1;
      return set(node, attr);
    };
  }
  file.stream.write = (
    /** @type {any} */ stream,
    /** @type {Uint8Array} */ buffer,
    /** @type {number} */ offset,
    /** @type {number} */ length,
    /** @type {number} */ position,
    /** @type {boolean} */ canOwn,
  ) =>
    write(stream.node, max(stream.node.usedBytes, position + length), () =>
      writeStream(stream, buffer, offset, length, position, canOwn),
    );
  file.stream.msync = (
    /** @type {any} */ stream,
    /** @type {Uint8Array} */ buffer,
    /** @type {number} */ offset,
    /** @type {number} */ length,
  ) => {
    file.stream.write(stream, buffer, 0, length, offset, false);
    return 0;
  };
  for (const { node, stream } of [dir, file, link]) {
    freeze(node);
    freeze(stream);
  }

  // A pipe holds the bytes that were written and not read yet. Emscripten sets no bound.
  const writeAny = FS.write;
  const writeStreamed = (/** @type {any} */ stream, /** @type {any[]} */ ...rest) => {
    const pipe = stream?.node?.pipe;
    if (pipe?.buckets && pipe.buckets.length + rest[2] / 8192 > LARGEST_PIPE) refuse(EAGAIN);
    return writeAny(stream, ...rest);
  };
  defineProperty(FS, "write", { value: writeStreamed, writable: false, configurable: false });

  // All files so far are Python's own.
  count();
  free = { bytes, files };
  bytes = files = 0;

  return {
    /** @param {{ maxFileBytes: number, maxFiles: number }} config */
    limit({ maxFileBytes, maxFiles }) {
      mostBytes = maxFileBytes;
      mostFiles = maxFiles;
    },

    /** A number that differs whenever the file's contents do, whatever its times say. @param {Node} node */
    version: (node) => versions.get(node) ?? 0,

    /** A number that differs after any change of a file or folder. */
    get edits() {
      return edits;
    },

    /** The size of the files that do not count. */
    free: () => free,

    /**
     * Puts files in place that were within the limits in another guest. `uncounted` is the size of those that do not
     * count. Files of packages that were installed here since then do not count either.
     * @param {typeof free} uncounted @param {() => void} work
     */
    put(uncounted, work) {
      const limits = [mostBytes, mostFiles];
      mostBytes = mostFiles = Infinity;
      try {
        work();
      } finally {
        [mostBytes, mostFiles] = limits;
        free = { bytes: max(free.bytes, uncounted.bytes), files: max(free.files, uncounted.files) };
        count();
      }
    },

    /**
     * Runs work whose files do not count because they are not the user's, such as installing a package.
     * @template T @param {() => T | Promise<T>} work
     */
    async exempt(work) {
      count();
      const before = { bytes, files };
      const limits = [mostBytes, mostFiles];
      mostBytes = mostFiles = Infinity;
      try {
        return await work();
      } finally {
        [mostBytes, mostFiles] = limits;
        count();
        free = { bytes: free.bytes + bytes - before.bytes, files: free.files + files - before.files };
        ({ bytes, files } = before);
      }
    },

    /** Begins to watch an execution. */
    watch() {
      watching = true;
      changes = null;
    },

    /** Ends the watch. Returns the changed files of the working folder, and the number of those left out. */
    changed() {
      watching = false;
      // Code may have closed a standard stream, and the next opened file would get its number.
      for (const [fd, stream] of standard.entries()) {
        if (FS.streams[fd] !== stream || stream.fd !== fd) FS.streams[(stream.fd = fd)] = stream;
      }
      const noted = changes;
      changes = null;
      /** @type {FileChange[]} */
      const found = [];
      if (!noted) return {};
      const { before, touched } = noted;
      const after = list();
      for (const [path, node] of after) {
        const known = before.get(path);
        if (known === node && !touched.has(node)) continue;
        found.push({ path: showName(path), change: known ? "modified" : "created", size: node.usedBytes ?? 0 });
      }
      for (const path of before.keys())
        if (!after.has(path)) found.push({ path: showName(path), change: "deleted", size: 0 });
      found.sort((a, b) => (a.path < b.path ? -1 : 1));
      let kept = 0;
      for (let chars = 0; kept < found.length && kept < MOST_CHANGES; kept++) {
        chars += found[kept].path.length;
        if (chars > MOST_CHARS) break;
      }
      return { files: found.slice(0, kept), omittedFiles: found.length - kept };
    },
  };
}

// Unpacks wheels into a guest's file system: all of them, or none.
//
// Shared objects are not loaded here. The `import` that needs one loads it, because a worker may compile while Python
// waits.

import { listWheel } from "./wheel.js";

/** @import { WheelFile } from "../pkg/sandglass.js" */
/** @import { Member } from "./wheel.js" */

const { Map } = self;

/** The folder of libraries that packages share, in which Python and Emscripten look. */
const LIBRARIES = "/usr/lib";
/** The time of all unpacked files: the same in every guest, so that an unchanged file is known as such. */
const WRITTEN_AT = Date.UTC(1980, 0, 1);
/**
 * The guest's runtime, which no wheel may replace. Python's own library is safe, because its archive comes first on
 * `sys.path`.
 */
const RESERVED = /^(sandglass|_?pyodide(_js)?|js)(\.|\/|-|$)/i;

/**
 * Unpacks wheels. Returns the paths of the new files and folders. Throws an Error that names the faulty file and its
 * fault; then nothing was changed.
 * @param {any} FS  Emscripten's
 * @param {string} site  the folder of packages
 * @param {WheelFile[]} wheels
 * @param {Blob[]} blobs  their files, in the same order
 * @param {number} maxBytes  the most bytes that they may take unpacked
 */
export async function installWheels(FS, site, wheels, blobs, maxBytes) {
  /** @type {Map<string, Uint8Array>} */
  const files = new Map();
  let bytes = 0;
  for (const [index, { fileName, isLibrary }] of wheels.entries()) {
    try {
      const members = await listWheel(blobs[index]);
      bytes += members.reduce((sum, { size }) => sum + size, 0);
      if (bytes > maxBytes) throw new Error(`unpacked, it takes more than ${maxBytes} bytes with the others`);
      for (const member of members) {
        const path = place(member);
        if (path) files.set(`${isLibrary ? LIBRARIES : site}/${path}`, await member.read());
      }
    } catch (error) {
      const why = error instanceof Error ? error.message : error;
      throw new Error(`${fileName} was not installed, nor what was to come with it: ${why}`);
    }
  }
  FS.ignorePermissions = true;
  try {
    return write(FS, files);
  } finally {
    FS.ignorePermissions = false;
  }
}

/**
 * Returns a member's path below the folder of packages; undefined when it is of no use here.
 * @param {Member} member
 */
function place({ name, isLink }) {
  const parts = name.split("/");
  const strays = parts.some((part) => part === "" || part === "." || part === "..");
  if (strays || /[\\\0-\x1f]/.test(name)) throw new Error(`"${name}" leads out of the folder of packages`);
  if (isLink) throw new Error(`"${name}" is a link`);
  let path = name;
  if (parts[0].endsWith(".data") && parts.length > 2) {
    if (parts[1] !== "purelib" && parts[1] !== "platlib") return undefined;
    path = parts.slice(2).join("/");
  }
  if (/^[^/]+\.pth$/.test(path)) return undefined; // Python reads these when it starts, which it has
  if (RESERVED.test(path)) throw new Error(`"${name}" would replace a part of the sandbox`);
  return path;
}

/** @param {any} FS @param {Map<string, Uint8Array>} files */
function write(FS, files) {
  /** @type {string[]} */
  const paths = [];
  const folders = new Set();
  const before = new Map();
  try {
    for (const [path, bytes] of files) {
      const folder = path.slice(0, path.lastIndexOf("/"));
      if (!folders.has(folder)) {
        folders.add(folder);
        for (let end = 1; end > 0;) {
          end = folder.indexOf("/", end + 1);
          const parent = end < 0 ? folder : folder.slice(0, end);
          if (FS.analyzePath(parent).exists) continue;
          FS.mkdir(parent);
          paths.push(parent);
        }
      }
      before.set(path, FS.analyzePath(path).exists ? FS.readFile(path) : undefined);
      FS.writeFile(path, bytes, { canOwn: true });
      FS.utime(path, WRITTEN_AT, WRITTEN_AT);
    }
  } catch (error) {
    for (const [path, bytes] of before) restore(FS, path, bytes);
    throw new Error(`the files could not be written (${error}): is something of yours in the folder of packages?`);
  }
  return [...paths, ...files.keys()];
}

/** @param {any} FS @param {string} path @param {Uint8Array | undefined} bytes */
function restore(FS, path, bytes) {
  try {
    if (bytes) FS.writeFile(path, bytes);
    else FS.unlink(path);
  } catch {
    // The file was not written yet.
  }
}

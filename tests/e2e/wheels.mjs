// A mirror of packages for the tests: the real wheels that scripts/setup downloaded, forged ones, and their lock file.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { listen, root } from "./harness.mjs";

// wheel.js is written for browsers, which have `self`.
globalThis.self ??= /** @type {any} */ (globalThis);
const { listWheel, readMetadata } = await import("../../pyodide-glue/wheel.js");

const FOLDER = join(root, ".setup/wheels");
/** @typedef {{ name: string, version: string, file_name: string, sha256: string, install_dir: string, imports: string[], depends: string[], package_type: string }} Entry */

/** The SHA-256 of a file. @param {Buffer} bytes */
export const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");

/**
 * Forges a wheel with uncompressed members. A member's header may lie about the member.
 * @param {Record<string, string | { text: string, size?: number, mode?: number }>} members
 */
export function forge(members) {
  /** @type {Buffer[]} */
  const bodies = [];
  /** @type {Buffer[]} */
  const directory = [];
  let offset = 0;
  for (const [name, member] of Object.entries(members)) {
    const { text, size, mode = 0o100644 } = typeof member === "string" ? { text: member } : member;
    const [path, body] = [Buffer.from(name), Buffer.from(text)];
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt32LE(crc32(body), 10);
    common.writeUInt32LE(body.length, 14);
    common.writeUInt32LE(size ?? body.length, 18);
    common.writeUInt16LE(path.length, 22);
    bodies.push(Buffer.from("PK\x03\x04"), common, path, body);
    const rest = Buffer.alloc(14);
    rest.writeUInt32LE(mode * 65536, 6);
    rest.writeUInt32LE(offset, 10);
    directory.push(Buffer.from("PK\x01\x02\x14\x00", "latin1"), common, rest, path);
    offset += 30 + path.length + body.length;
  }
  const entries = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.write("PK\x05\x06", "latin1");
  end.writeUInt16LE(Object.keys(members).length, 8);
  end.writeUInt16LE(Object.keys(members).length, 10);
  end.writeUInt32LE(entries.length, 12);
  end.writeUInt32LE(offset, 16);
  return Buffer.concat([...bodies, entries, end]);
}

/**
 * The members of a package with these modules.
 * @param {string} name @param {string} version @param {Record<string, any>} modules @param {string[]} [requires]
 */
export function packageOf(name, version, modules, requires = []) {
  const lines = [`Metadata-Version: 2.1`, `Name: ${name}`, `Version: ${version}`];
  const metadata = [...lines, ...requires.map((line) => `Requires-Dist: ${line}`), "", ""].join("\n");
  return forge({ ...modules, [`${name}-${version}.dist-info/METADATA`]: metadata });
}

/** The real wheels by their file names, and a lock file for them. */
export async function realWheels() {
  const names = readdirSync(FOLDER).filter((file) => file.endsWith(".whl"));
  /** @type {Map<string, Buffer>} */
  const files = new Map(names.map((name) => [name, readFileSync(join(FOLDER, name))]));
  /** @type {Record<string, Entry>} */
  const packages = {};
  for (const [file, bytes] of files) {
    const wheel = new Blob([/** @type {any} */ (bytes)]);
    const metadata = await readMetadata(wheel);
    const header = (/** @type {string} */ name) => new RegExp(`^${name}: (.+)$`, "m").exec(metadata)?.[1] ?? "";
    const depends = [...metadata.matchAll(/^Requires-Dist: ([\w.-]+)(?!.*extra ==)/gm)].map(([, name]) => name);
    const members = (await listWheel(wheel)).map(({ name }) => name);
    const tops = members.map((name) => /^([\w]+)(\/|\.py$)/.exec(name)?.[1]).filter((name) => name !== undefined);
    const name = header("Name");
    packages[name.toLowerCase().replace(/[-_.]+/g, "-")] = entry(name, header("Version"), file, bytes, {
      depends,
      imports: [...new Set(tops)],
    });
  }
  return { files, packages };
}

/**
 * A package's entry in a lock file.
 * @param {string} name @param {string} version @param {string} file @param {Buffer} bytes @param {Partial<Entry>} [more]
 * @returns {Entry}
 */
export function entry(name, version, file, bytes, more) {
  const common = { install_dir: "site", package_type: "package", imports: [name], depends: [] };
  return { name, version, file_name: file, sha256: sha256(bytes), ...common, ...more };
}

/** Starts a server of files that counts its requests. */
export async function serveFiles(/** @type {Map<string, Buffer | string>} */ files) {
  /** @type {string[]} */
  const asked = [];
  /** @type {((value?: unknown) => void)[]} */
  const held = [];
  /** The bodies that the server holds back: all answers, or the second half of each wheel. @type {"answers" | "halves" | undefined} */
  const holding = undefined;
  const state = { asked, held, holding, url: "", close: async () => {} };
  const server = createServer(async (request, response) => {
    const name = decodeURIComponent((request.url ?? "/").slice(1).split("?")[0]);
    asked.push(name);
    const release = () => new Promise((resolve) => held.push(resolve));
    if (state.holding === "answers") await release();
    const body = files.get(name);
    response.writeHead(body === undefined ? 404 : 200, {
      "Access-Control-Allow-Origin": "*",
      "Content-Type": name.endsWith(".json") ? "application/json" : "application/zip",
      ...(body === undefined ? {} : { "Content-Length": Buffer.byteLength(body) }),
    });
    if (state.holding !== "halves" || body === undefined || !name.endsWith(".whl")) return response.end(body);
    const bytes = Buffer.from(body);
    const half = bytes.length >> 1;
    response.write(bytes.subarray(0, half));
    await release();
    response.end(bytes.subarray(half));
  });
  const { url, close } = await listen(server);
  return Object.assign(state, { url: `${url}/`, close });
}

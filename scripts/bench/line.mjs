// A server at the end of a slow line, for the benchmark of first visits. It compresses as sites do, and counts what it sends.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join } from "node:path";
import { promisify } from "node:util";
import { brotliCompress, constants } from "node:zlib";
import { listen } from "../serve.mjs";

const TYPES = /** @type {Record<string, string>} */ ({
  ".html": "text/html",
  ".js": "text/javascript",
  ".json": "application/json",
  ".mjs": "text/javascript",
  ".txt": "text/plain",
  ".wasm": "application/wasm",
});
/** Files that are compressed already. */
const COMPRESSED = new Set([".zip", ".bin", ".whl"]);
/** Bytes that are sent in one step, so that responses share the line. */
const STEP = 16_384;

/**
 * Serves a folder over a line that all responses share.
 * @param {string} root
 * @param {Record<string, string>} folders  more folders, by the first part of the address
 * @param {number} bytesPerSecond
 * @param {Record<string, string>} headers
 */
export async function serveSlowly(root, folders, bytesPerSecond, headers) {
  /** @type {Map<string, Promise<Buffer>>} */
  const bodies = new Map();
  let sent = 0;
  let free = 0;
  const server = createServer(async (request, response) => {
    const path = (request.url ?? "/").replace(/\?.*/, ""); // no address of the benchmark has escapes
    const [, top = "", rest = ""] = /^\/([^/]*)\/?(.*)$/.exec(path) ?? [];
    if (path.includes("..")) return void response.writeHead(404, headers).end();
    const file = folders[top] ? join(folders[top], rest) : join(root, path);
    if (!bodies.has(file)) bodies.set(file, compressed(file));
    const body = await bodies.get(file)?.catch(() => undefined);
    if (!body) return void response.writeHead(404, headers).end();
    response.writeHead(200, {
      "Content-Type": TYPES[extname(file)] ?? "application/octet-stream",
      "Content-Length": body.length,
      ...(!COMPRESSED.has(extname(file)) && { "Content-Encoding": "br" }),
      ...headers,
    });
    for (let at = 0; at < body.length && !response.destroyed; at += STEP) {
      const step = body.subarray(at, at + STEP);
      free = Math.max(free, performance.now()) + (step.length / bytesPerSecond) * 1000;
      await new Promise((resolve) => setTimeout(resolve, free - performance.now()));
      sent += step.length;
      response.write(step);
    }
    response.end();
  });
  const { url, close } = await listen(server);
  /** The bytes that were sent since the last call. */
  const takeSent = () => {
    const bytes = sent;
    sent = 0;
    return bytes;
  };
  return { url, close, takeSent };
}

/** @param {string} file @returns {Promise<Buffer>} */
async function compressed(file) {
  const body = await readFile(file);
  if (COMPRESSED.has(extname(file))) return body;
  return promisify(brotliCompress)(body, {
    params: { [constants.BROTLI_PARAM_QUALITY]: 9, [constants.BROTLI_PARAM_LGWIN]: 24 },
  });
}

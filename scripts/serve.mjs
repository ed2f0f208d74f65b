// A static file server for the playground, the demo and the tests. Loopback only.
import { createReadStream } from "node:fs";
import { realpath, stat } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, sep } from "node:path";

const MIME = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".ico": "image/x-icon",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".map": "application/json",
  ".md": "text/plain; charset=utf-8",
  ".mjs": "text/javascript; charset=utf-8",
  ".png": "image/png",
  ".svg": "image/svg+xml",
  ".txt": "text/plain; charset=utf-8",
  ".wasm": "application/wasm",
  ".whl": "application/zip",
  ".zip": "application/zip",
};

/** Headers that make a page cross-origin isolated, so that it has SharedArrayBuffer. */
export const CROSS_ORIGIN_ISOLATED = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

/**
 * Serves the files below `root` on 127.0.0.1. Names that begin with a dot are not served.
 * @param {string} root
 * @param {{ port?: number, headers?: Record<string, string>, folders?: Record<string, string> }} [options] port 0 takes
 *   any free one; `folders` are more folders to serve, by their names in the address
 * @returns {Promise<{ url: string, close: () => Promise<void> }>} `url` has no trailing slash
 */
export async function serve(root, { port = 0, headers = {}, folders = {} } = {}) {
  const top = await realpath(root);
  const others = new Map();
  for (const [name, folder] of Object.entries(folders)) others.set(name, await realpath(folder));
  const server = createServer((request, response) => {
    const [, name, rest] = /^\/([^/?]*)(\/.*)?$/s.exec(request.url ?? "/") ?? [];
    const other = rest && others.get(name);
    if (other) request.url = rest;
    answer(other ?? top, request, response, headers).catch(() => refuse(response, 500, headers));
  });
  const { url, close } = await listen(server, port);
  return { url, close };
}

/**
 * Makes a server listen on 127.0.0.1. Closing it ends all its connections, upgraded ones too.
 * @param {import("node:net").Server} server  a server of TCP or HTTP
 * @param {number} [port]  0 takes any free one
 * @returns {Promise<{ port: number, url: string, close: () => Promise<void> }>} `url` has no trailing slash
 */
export async function listen(server, port = 0) {
  /** @type {Set<import("node:net").Socket>} */
  const sockets = new Set();
  server.on("connection", (socket) => {
    sockets.add(socket);
    socket.once("close", () => sockets.delete(socket));
  });
  await new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", () => resolve(undefined));
  });
  const address = /** @type {import("node:net").AddressInfo} */ (server.address());
  return {
    port: address.port,
    url: `http://127.0.0.1:${address.port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        for (const socket of sockets) socket.destroy();
      }),
  };
}

/**
 * @param {string} top
 * @param {import("node:http").IncomingMessage} request
 * @param {import("node:http").ServerResponse} response
 * @param {Record<string, string>} headers
 */
async function answer(top, request, response, headers) {
  if (request.method !== "GET" && request.method !== "HEAD") return refuse(response, 405, headers);
  const [path, query] = split(request.url ?? "/");
  if (path === undefined || path.includes("\0") || path.includes("\\")) return refuse(response, 400, headers);
  if (path.split("/").some((part) => part.startsWith("."))) return refuse(response, 404, headers);

  let file = await realpath(join(top, path)).catch(() => undefined);
  // Links may lead out of the folder, so the resolved path is checked.
  if (file === undefined || !(file === top || file.startsWith(top + sep))) return refuse(response, 404, headers);
  let info = await stat(file);
  if (info.isDirectory()) {
    if (!path.endsWith("/")) {
      response.writeHead(301, {
        ...headers,
        Location: `${path.replace(/^\/+/, "/").replace(/[^/]+/g, encodeURIComponent)}/${query}`,
      });
      return void response.end();
    }
    file = join(file, "index.html");
    info = await stat(file).catch(() => info);
  }
  if (!info.isFile()) return refuse(response, 404, headers);

  response.writeHead(200, {
    "Content-Type": MIME[/** @type {keyof typeof MIME} */ (extname(file).toLowerCase())] ?? "application/octet-stream",
    "Content-Length": info.size,
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    ...headers,
  });
  if (request.method === "HEAD") return void response.end();
  createReadStream(file)
    .on("error", () => response.destroy())
    .pipe(response);
}

/** @param {string} target @returns {[string | undefined, string]} */
function split(target) {
  const mark = target.indexOf("?");
  try {
    return [decodeURIComponent(mark < 0 ? target : target.slice(0, mark)), mark < 0 ? "" : target.slice(mark)];
  } catch {
    return [undefined, ""];
  }
}

/**
 * @param {import("node:http").ServerResponse} response
 * @param {number} status
 * @param {Record<string, string>} headers
 */
function refuse(response, status, headers) {
  if (response.headersSent) return void response.destroy();
  response.writeHead(status, { ...headers, "Content-Type": "text/plain; charset=utf-8" });
  response.end(`${status}\n`);
}

// A hostile server behind the option `backend`: its answers to HTTP requests, and its messages on the channel.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { listen } from "../../scripts/serve.mjs";

/** @typedef {import("puppeteer-core").Page} Page */
/** @typedef {import("node:stream").Duplex} Duplex */

const KEY = "a-key-that-is-nobody-elses-0123";
const ID = "0123456789abcdef0123456789abcdef";
/** The version of the wire, which `crates/core/src/protocol.rs` writes there. */
const WIRE = new URL("../../pyodide-glue/python/sandglass/runtime/wire.py", import.meta.url);
const VERSION = Number(readFileSync(WIRE, "utf8").match(/^VERSION = (\d+)$/m)?.[1]);
/** Milliseconds that a sandbox may take for an answer of any kind. */
const IN_TIME_MS = 20_000;

const GUEST = { bridge: "jspi", softInterrupt: true, python: "3.14.0" };
const BOOTED = JSON.stringify({ type: "booted", guest: 1 });
const READY = frame(1, { type: "ready", version: VERSION, guest: GUEST });
const REPORT = { stdout: "", outcome: "ok", result: "forged" };

/**
 * Answers to `POST /v1/sessions`. None makes a sandbox, or makes the page send the key elsewhere.
 * @type {Record<string, (elsewhere: string) => { status?: number, headers?: Record<string, string>, body?: string }>}
 */
const ANSWERS = {
  "an id that leads elsewhere": () => session("../../../steal"),
  "an id with a query": () => session("x?y=1#"),
  "an id with another host": () => session(`@127.0.0.1:1/`),
  "an id that is empty": () => session(""),
  "an id that is long": () => session("a".repeat(100_000)),
  "an id that is no text": () => session({ toString: 1 }),
  "a backend that there is not": () => session(ID, "chromium"),
  "a backend that every object has": () => session(ID, "__proto__"),
  "no JSON": () => ({ body: "<script>parent.REACHED = 1</script>" }),
  "JSON that is deep": () => ({ body: "[".repeat(1_000_000) }),
  "a list": () => ({ body: "[]" }),
  nothing: () => ({ body: "" }),
  "another place": (elsewhere) => ({ status: 307, headers: { location: `${elsewhere}/redirected` } }),
  "another place for good": (elsewhere) => ({ status: 301, headers: { location: `${elsewhere}/redirected` } }),
  "a refusal that is long": () => ({
    status: 500,
    body: JSON.stringify({ error: { message: "x".repeat(5_000_000) } }),
  }),
  "a refusal that is deep": () => ({ status: 429, body: `{"error":${"[".repeat(500_000)}` }),
  "a refusal that quotes the key": () => ({ status: 401, body: JSON.stringify({ error: `not ${KEY}` }) }),
};

/**
 * Messages after the request for a guest. None is taken for a result, unless it is one.
 * @type {Record<string, (string | Buffer)[]>}
 */
const CHANNELS = {
  "text that is no JSON": ["hello"],
  "JSON that is deep": ["[".repeat(60_000)],
  "text that is long": [JSON.stringify({ type: "lost", guest: 1, message: "x".repeat(1_000_000) })],
  "a guest that was not asked for": [JSON.stringify({ type: "booted", guest: 2 })],
  "a guest that is no number": ['{"type":"booted","guest":-1}', '{"type":"booted","guest":1e99}', "null", "1"],
  "a loss for a made-up reason": ['{"type":"lost","guest":1,"message":"m","killer":"__proto__"}'],
  "a frame that is empty": [BOOTED, Buffer.alloc(0)],
  "a frame without a header": [BOOTED, Buffer.from([1, 0, 0, 0])],
  "a frame whose header is longer than it": [BOOTED, numbers(1, 0xffff_ffff)],
  "a frame whose header is huge": [BOOTED, Buffer.concat([numbers(1, 20 << 20), Buffer.alloc(20 << 20, "[")])],
  "a frame whose body is longer than it": [BOOTED, Buffer.concat([READY, numbers(0xffff_fff0)])],
  "a header that is no UTF-8": [BOOTED, Buffer.concat([numbers(1, 2), Buffer.from([0xff, 0xfe])])],
  "a header that is deep": [BOOTED, frame(1, "[".repeat(100_000))],
  "a header without events": [BOOTED, frame(1, "[]")],
  "an event that there is not": [BOOTED, frame(1, { type: "constructor" })],
  "a version that there is not": [BOOTED, frame(1, { type: "ready", version: 4_000_000_000, guest: GUEST })],
  "memory for later guests of the page": [BOOTED, frame(1, { type: "snapshot" }, Buffer.alloc(1000))],
  "memory for later guests, once it runs": [BOOTED, READY, frame(1, { type: "snapshot" }, Buffer.alloc(1000))],
  "a saved state, unasked": [
    BOOTED,
    READY,
    frame(1, { type: "saved", checkpoint: 1, full: true, lost: [], spent: false }),
  ],
  "results of turns to come": [
    BOOTED,
    READY,
    ...[0, 1, 2, 3, 4, 0xffff_ffff].flatMap((exchange) => [
      frame(1, { type: "executed", exchange, execution: REPORT, encoding: "none" }),
      frame(1, { type: "value", exchange, encoding: "text" }, Buffer.from("forged")),
      frame(1, { type: "done", exchange }),
    ]),
  ],
  "calls before there is code": [
    BOOTED,
    READY,
    frame(
      1,
      { type: "hostCall", exchange: 1, call: 1, batch: 1, name: "llm_query", encoding: "text", blocking: false },
      Buffer.from("REACHED"),
    ),
  ],
  "output before there is code": [
    BOOTED,
    READY,
    frame(1, { type: "output", exchange: 1, stream: "stdout", skipped: 0, text: "x" }),
  ],
  "pieces without an end": [
    BOOTED,
    READY,
    ...Array(50).fill(frame(1, { type: "part", encoding: "bytes" }, Buffer.alloc(1))),
  ],
  "a code page in a body": [
    BOOTED,
    READY,
    frame(1, { type: "display", exchange: 0, mime: "text/html" }, Buffer.from("<script>")),
  ],
  "two guests at once": [BOOTED, BOOTED, READY, READY],
};

/**
 * Tests all answers and messages.
 * @param {Page} page @param {(name: string, test: () => Promise<string[]>) => Promise<void>} test
 */
export async function testHostileServer(page, test) {
  const elsewhere = await start(() => ({ body: "{}" }), []);
  for (const [name, answer] of Object.entries(ANSWERS)) {
    await test(`hostile server: it answers ${name}`, async () => {
      const server = await start(() => answer(elsewhere.url), []);
      try {
        const { began, ...rest } = await useSandbox(page, server.url);
        return [
          ...(/^backend_unavailable/.test(began) ? [] : [`it began: ${began} ${JSON.stringify(rest)}`]),
          ...(began.length < 3000 ? [] : [`its words are ${began.length} long`]),
          ...(began.includes(KEY) ? ["the message has the key"] : []),
          ...server.asked.filter((url) => url !== "POST /v1/sessions").map((url) => `it was asked ${url}`),
          ...elsewhere.asked.splice(0).map((url) => `somebody else was asked ${url}`),
        ];
      } finally {
        await server.close();
      }
    });
  }
  for (const [name, said] of Object.entries(CHANNELS)) {
    await test(`hostile server: it says ${name}`, async () => {
      const server = await start(() => session(ID), said);
      try {
        const { began, calls, run, result } = await useSandbox(page, server.url);
        return [
          ...(/^(ok|backend_unavailable|boot_failed|guest_lost|protocol)/.test(began) ? [] : [`it began: ${began}`]),
          ...(run === undefined || /^(crashed|timeout|backend_unavailable|boot_failed|guest_lost|protocol)/.test(run)
            ? []
            : [`code came to ${run}`]),
          ...(result === undefined ? [] : [`it has a result: ${result}`]),
          ...(calls === 0 ? [] : [`${calls} calls of functions`]),
          ...server.asked.filter((url) => url.includes(KEY)).map((url) => `the key is in ${url}`),
        ];
      } finally {
        await server.close();
      }
    });
  }
  await elsewhere.close();
}

/**
 * Makes a sandbox and runs code. Tells if one of them takes too long.
 * @param {Page} page @param {string} url
 * @returns {Promise<{ began: string, run?: string, result?: string, calls: number }>}
 */
function useSandbox(page, url) {
  return page.evaluate(
    async ({ url, apiKey, inTime }) => {
      const { createSandbox } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      let calls = 0;
      /** @param {Promise<any>} promise */
      const settle = (promise) =>
        Promise.race([
          promise.then(
            (value) => ({ value }),
            (error) => ({ error: `${error.code ?? error}: ${error.message}` }),
          ),
          new Promise((resolve) => setTimeout(() => resolve({ error: "it never came to an end" }), inTime)),
        ]);
      const { value: sandbox, error } = await settle(
        createSandbox({
          backend: { url, apiKey },
          bootTimeout: 700,
          timeout: 300,
          gracePeriod: 100,
          onLLMQuery: () => `${(calls += 1)}`,
        }),
      );
      if (error) return { began: error, calls };
      const ran = await settle(sandbox.initialize(null).then(() => sandbox.execute("6 * 7")));
      await sandbox.destroy();
      return { began: "ok", run: ran.error ?? ran.value.outcome, result: ran.value?.result, calls };
    },
    { url, apiKey: KEY, inTime: IN_TIME_MS },
  );
}

/** @param {any} id @param {string} [backend] */
function session(id, backend = "bubblewrap") {
  return { status: 201, body: JSON.stringify({ id, backend, capabilities: { channel: true } }) };
}

/** @param {...number} all */
function numbers(...all) {
  const bytes = Buffer.alloc(4 * all.length);
  all.forEach((number, at) => bytes.writeUInt32LE(number, 4 * at));
  return bytes;
}

/** One message of a guest on the channel. @param {number} guest @param {object | string} event @param {...Buffer} bodies */
function frame(guest, event, ...bodies) {
  const header = Buffer.from(typeof event === "string" ? event : JSON.stringify([event]));
  return Buffer.concat([
    numbers(guest, header.length),
    header,
    ...bodies.flatMap((body) => [numbers(body.length), body]),
  ]);
}

/**
 * Starts a server with this answer, which sends `said` on its channel when a guest is asked for.
 * @param {() => { status?: number, headers?: Record<string, string>, body?: string }} answer @param {(string | Buffer)[]} said
 */
async function start(answer, said) {
  /** @type {string[]} */
  const asked = [];
  const cors = {
    "access-control-allow-origin": "*",
    "access-control-allow-headers": "*, authorization",
    "access-control-allow-methods": "*",
  };
  const server = createServer((request, response) => {
    if (request.method === "OPTIONS") return response.writeHead(204, cors).end();
    if (request.method !== "DELETE") asked.push(`${request.method} ${request.url}`);
    const { status = 200, headers = {}, body = "" } = request.method === "POST" ? answer() : {};
    response.writeHead(status, { ...cors, ...headers }).end(body);
  });
  server.on("upgrade", (request, /** @type {Duplex} */ socket) => {
    asked.push(`upgrade ${request.url}`);
    const accept = createHash("sha1").update(
      `${request.headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`,
    );
    socket.on("error", () => {});
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: ${String(request.headers["sec-websocket-protocol"]).split(",")[0]}\r\n` +
        `Sec-WebSocket-Accept: ${accept.digest("base64")}\r\n\r\n`,
    );
    socket.once("data", () => said.forEach((message) => socket.write(toWire(message))));
  });
  const { url, close } = await listen(server);
  return { asked, url, close };
}

/** A WebSocket's frame. @param {string | Buffer} message */
function toWire(message) {
  const bytes = Buffer.from(message);
  const head = Buffer.alloc(10);
  head[0] = typeof message === "string" ? 0x81 : 0x82;
  head[1] = 127;
  head.writeBigUInt64BE(BigInt(bytes.length), 2);
  // The protocol demands the shortest form of a length.
  if (bytes.length < 126) {
    head[1] = bytes.length;
    return Buffer.concat([head.subarray(0, 2), bytes]);
  }
  if (bytes.length < 65_536) {
    head[1] = 126;
    head.writeUInt16BE(bytes.length, 2);
    return Buffer.concat([head.subarray(0, 4), bytes]);
  }
  return Buffer.concat([head, bytes]);
}

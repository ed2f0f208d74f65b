// The guest's entry in the browser: a classic worker that runs one Python interpreter for one sandbox.
//
// The first message brings a private port that only this file holds. The next ones bring the compiled module, the parts that
// Python starts from (`Parts`), and later the library. The port speaks the protocol of crates/core/src/protocol.rs.
// Python cannot end its own exchange: this file posts the end, after the interpreter has really returned.
// Decisions: docs/internals/saving-and-restoring.md.

import { createBridge } from "./bridge.js";
import { plainBytes } from "./bytes.js";
import { createLibrary } from "./library.js";
import { lockDown, silence } from "./lockdown.js";
import { loadRuntime } from "./runtime.js";
import { createDetector } from "./nondeterminism.js";

/** @import { Encoding, Event, Request, Step } from "../pkg/sandglass.js" */
/** @import { Post } from "./bridge.js" */
/** @import { Parts } from "./start-worker.js" */

// Taken before any guest code runs, because that code may replace them.
const { Blob, Uint8Array } = self;
const { parse, stringify } = JSON;
const { imul } = Math;
/** Code that may call JavaScript, which may call Python where that cannot wait for the library. */
const JAVASCRIPT = /\b(js\b|pyodide)/; // not `json`
/** Code that may use Pyodide's own event loop, whose order no record has. */
const EVENT_LOOP = /\bpyodide\b/;
const SMALL_BODY = 100_000;
const PIECE = 1 << 20;
/** The most bytes of a buffer that leaves whole. Half of what a process's pipe takes in one message. */
const MAX_MOVED_BYTES = 1 << 27;
/** Bytes of a file that Python decodes in one step. */
const FILE_PIECE = 4 << 20;
/** The most bytes of bodies that wait for the next message. */
const MAX_HELD_BYTES = 4 << 20;

silence();
self.postMessage(null); // for start-worker.js

self.onmessage = async ({ data }) => {
  const { port, mailbox } = /** @type {{ port: MessagePort, mailbox?: SharedArrayBuffer }} */ (data);
  /** @type {PromiseWithResolvers<Parts>} */
  const parts = Promise.withResolvers();
  /** The snapshot, which may come before the other parts. @type {PromiseWithResolvers<Blob | undefined>} */
  const snapshot = Promise.withResolvers();
  /** @type {PromiseWithResolvers<WebAssembly.Module>} */
  const wasm = Promise.withResolvers();
  self.onmessage = ({ data }) => {
    if (data instanceof WebAssembly.Module) wasm.resolve(data);
    else if (data instanceof Array) library.take(data[1]);
    else if ("kept" in data) snapshot.resolve(data.kept);
    else {
      parts.resolve(data);
      snapshot.resolve(data.snapshot);
    }
  };
  const postMessage = MessagePort.prototype.postMessage.bind(port);
  const detector = createDetector();
  const library = createLibrary();

  /** Events that are posted with the next message, because each message costs the page a task. @type {string[]} */
  let held = [];
  /** The bodies of the held events. @type {Uint8Array[]} */
  let bodies = [];
  let heldBytes = 0;
  /**
   * Posts an event. A long value is sent in pieces, which the page takes one at a time. Bytes with a buffer of their own are
   * moved instead, which takes no time.
   * @type {Post}
   */
  const post = (event, body, hold) => {
    if (event?.type === "hostCall") detector.end(); // a call goes on only after the code is asked for
    let bytes = body && plainBytes(body);
    const isValue = event?.type === "value" || event?.type === "executed";
    if (bytes && bytes.length > PIECE && isValue && !isMoved(event, bytes)) {
      post(null); // a piece is posted by itself
      let start = 0;
      while (bytes.length - start > PIECE) {
        let end = start + PIECE;
        // Keeps a character of UTF-8, which has at most four bytes, in one piece.
        if (event.encoding === "text") for (let n = 0; n < 3 && (bytes[end] & 0xc0) === 0x80; n++) end -= 1;
        post({ type: "part", encoding: event.encoding }, bytes.slice(start, end));
        start = end;
      }
      bytes = bytes.slice(start);
    }
    if (event) held.push(stringify(event));
    if (bytes) {
      bodies.push(bytes);
      heldBytes += bytes.length;
    }
    if ((hold && heldBytes < MAX_HELD_BYTES) || held.length === 0) return;
    const message = [`[${held.join()}]`, ...bodies];
    // Moving a small buffer costs more than copying it.
    const moved = bodies.filter((body) => body.length > SMALL_BODY).map((body) => body.buffer);
    held = [];
    bodies = [];
    heldBytes = 0;
    postMessage(message, moved);
  };
  try {
    const bridge = createBridge(post, mailbox, detector, library);
    const given = await snapshot.promise;
    const runtime = await loadRuntime(given, parts.promise, wasm.promise, bridge, detector, library);
    lockDown();
    const { made } = runtime;
    if (made) postMessage([stringify([{ type: "snapshot", reason: made.reason }]), made.snapshot]);
    const send = (/** @type {Event} */ event, /** @type {Blob | undefined} */ blob) =>
      postMessage(blob ? [stringify([event]), blob] : [stringify([event])]);
    // A suspended Python waits for it, but not with a JavaScript function on the stack.
    if (!bridge.python.canBlock && !library.isThere) library.ask(false);
    port.onmessage = createHandler(post, send, bridge, detector, library, runtime);
  } catch (error) {
    post({ type: "bootFailed", message: text(error) });
  }
};

/**
 * Makes the port's listener, which gives requests to Python, one exchange at a time.
 * @param {Post} post
 * @param {(event: Event, blob?: Blob) => void} send
 * @param {ReturnType<typeof createBridge>} bridge
 * @param {ReturnType<typeof createDetector>} detector
 * @param {ReturnType<typeof createLibrary>} library
 * @param {Awaited<ReturnType<typeof loadRuntime>>} runtime
 */
function createHandler(
  post,
  send,
  bridge,
  detector,
  library,
  { python, packages, checkpoints, files, libraries, limitMemory, fatal, info },
) {
  let settings = "";
  let inits = 0;

  /** @param {Extract<Request, { type: "init" }>} request */
  const init = ({ version, config, restores }) => {
    // A second `init` means that the guest is reused: it has had another state, and runs code ahead from now on.
    if (inits++ > 0) {
      if (!restores || bridge.busy() || !checkpoints.isReusable)
        return post({ type: "bootFailed", message: "the guest cannot be used again" });
      bridge.beginAnew();
    }
    limitMemory(config.maxMemoryBytes);
    files.limit(config);
    settings = stringify(config);
    const configured = version === info.version && !restores;
    const [encoding, why] = configured ? python.configure(settings) : ["none"];
    if (encoding === "refused") return post({ type: "bootFailed", message: String(why) });
    post({ type: "ready", version: info.version, guest: { ...info.guest, ...bridge.capabilities } });
  };

  /** @param {Extract<Request, { type: "execute" }>} request @param {Uint8Array} notes  those of an earlier run */
  const execute = async ({ exchange, execution: id, code, ahead = false, more = false, noted = false }, notes) => {
    const before = [files.edits, libraries.number];
    files.watch();
    if (detector.usedJavaScript || JAVASCRIPT.test(code)) await bridge.haveLibrary();
    detector.begin(() => ahead && post({ type: "external", exchange }));
    if (noted) {
      bridge.record(notes);
      if (EVENT_LOOP.test(code)) detector.recorder?.end("it used Pyodide, and maybe its event loop");
      if (!checkpoints.isExact) detector.recorder?.end("no copy of its state would be exact");
    }
    if (more) python.extend(id, code, false);
    else python.prepare?.(id, code);
    let ended = await python.execute(id, code, ahead);
    while (ended === "") {
      const { text, isLast, isAsked } = await bridge.nextText();
      python.extend(id, text, isLast);
      ended = await python.execute(id, text, ahead && !isAsked);
    }
    if (noted) bridge.endRecord();
    const isWhole = detector.end() && bridge.isSteady && !ahead && !more;
    const isAlone = files.edits === before[0] && libraries.number === before[1] && !detector.hasCallbacks;
    const isPure = isWhole && isAlone && checkpoints.isExact;
    if (!ended)
      return post({ type: "fatal", message: "memory was full (memoryLimit), with nothing left to go on with" });
    const [report, encoding, final] = typeof ended === "string" ? [ended, /** @type {const} */ ("none")] : ended;
    const mark = isPure ? markOf(report, python.probe()) : undefined;
    const execution = { ...parse(report), stopped: bridge.end(), ...files.changed(), mark };
    post(
      { type: "executed", exchange, execution, encoding },
      execution.final ? (final ?? new Uint8Array(0)) : undefined,
    );
  };

  /** @param {Extract<Request, { type: "configure" }>} request */
  const configure = ({ exchange, hostFunctions, outputFields }) => {
    const changed = stringify({ ...parse(settings), hostFunctions, outputFields });
    const [encoding, why] = python.configure(changed);
    bridge.end();
    if (encoding === "refused")
      return post({ type: "refused", exchange, message: String(why).slice(0, 4000).toWellFormed() });
    settings = changed;
    post({ type: "done", exchange });
  };

  /** @param {Extract<Request, { type: "setVariable" }>} request @param {Uint8Array | Blob} body */
  const assign = async ({ name, encoding }, body) => {
    if (!(body instanceof Blob)) return python.setVariable(name, encoding, body);
    let bytes;
    try {
      // Read at once: in Firefox, a later read of a part of another process's Blob may never end.
      bytes = new Uint8Array(await body.arrayBuffer());
    } catch (error) {
      return /** @type {const} */ (["refused", `the file could not be read: ${text(error)}`]);
    }
    if (encoding !== "file") return python.setVariable(name, encoding, bytes);
    return readText(bytes)
      ? python.setVariable(name, "text", new Uint8Array(0))
      : python.setVariable(name, "bytes", bytes);
  };

  /**
   * Gives Python a file as the text of the next `setVariable`, piece by piece. Returns true when the file is text.
   * @param {Uint8Array} bytes
   */
  const readText = (bytes) => {
    let start = 0;
    do {
      const end = start + FILE_PIECE;
      if (!python.takeFile(bytes.subarray(start, end), end >= bytes.length)) return false;
      start = end;
    } while (start < bytes.length);
    return true;
  };

  /** @param {Extract<Request, { exchange: number, name: string }> | Extract<Request, { type: "listVariables" | "openState" | "captureState" }>} request @param {Uint8Array} body */
  const variables = async (request, body) => {
    const { exchange } = request;
    const [encoding, result] = await (request.type === "setVariable"
      ? assign(request, body)
      : request.type === "getVariable"
        ? python.getVariable(request.name)
        : request.type === "captureState"
          ? python.captureState(request.maxBytes, request.portable, request.direct)
          : request.type === "openState"
            ? python.openState(body, request.maxBytes)
            : python.listVariables());
    bridge.end();
    if (encoding === "refused") post({ type: "refused", exchange, message: result.slice(0, 4000).toWellFormed() });
    else if (request.type === "setVariable" || (request.type === "openState" && encoding === "none"))
      post({ type: "done", exchange });
    else post({ type: "value", exchange, encoding }, result);
  };

  /** @param {FileRequest} request @param {Uint8Array | Blob} body */
  const file = async (request, body) => {
    const { exchange, path } = request;
    let data = /** @type {Uint8Array} */ (body);
    try {
      if (!(body instanceof Uint8Array)) data = new Uint8Array(await body.arrayBuffer());
    } catch (error) {
      bridge.end();
      return post({ type: "refused", exchange, message: `${path}: the data could not be read: ${text(error)}` });
    }
    const asText = request.type === "readFile" && request.text;
    const [encoding, ...pieces] = python.file(request.type, path, data, asText);
    bridge.end();
    if (encoding === "refused")
      post({ type: "refused", exchange, message: String(pieces[0]).slice(0, 4000).toWellFormed() });
    else if (encoding === "none") post({ type: "done", exchange });
    else post({ type: "value", exchange, encoding }, join(/** @type {Uint8Array[]} */ (pieces)));
  };

  /** @param {Extract<Request, { type: "save" }>} request */
  const save = async ({ checkpoint, full }) => {
    try {
      const saved = await checkpoints.save(full);
      if (saved) {
        const { blob, ...rest } = saved;
        send({ type: "saved", checkpoint, ...rest }, blob);
      } else send({ type: "notSaved", checkpoint });
    } catch (error) {
      send({ type: "notSaved", checkpoint, reason: text(error) });
    }
  };

  /** @param {Extract<Request, { type: "restore" }>} request @param {Blob[]} chain */
  const restore = async ({ exchange, steps = [] }, chain) => {
    await bridge.haveLibrary(); // values may need modules, and are loaded where Python cannot wait
    const lost = await checkpoints.restore(chain, inits > 1, () => python.configure(settings));
    if (steps.length > 0 && !library.isThere) await bridge.waitForLibrary(); // Python may not have waited for it before
    const names = steps.length > 0 ? await repeat(steps) : undefined;
    bridge.end();
    post({ type: "restored", exchange, lost, names });
  };

  /**
   * Runs cells again that ran on this state before. Returns the names of the variables, if the cells change them. Throws when
   * one has another outcome than before.
   * @param {Step[]} steps
   */
  const repeat = async (steps) => {
    /** @type {string[] | undefined} */
    let names;
    detector.standStill(true);
    bridge.repeat(true);
    for (const { execution: id, code, mark } of steps) {
      files.watch();
      detector.begin();
      python.prepare?.(id, code);
      const ended = await python.execute(id, code, false);
      const isPure = detector.end();
      const report = typeof ended === "string" ? ended : ended?.[0];
      if (!isPure || !report || markOf(report, python.probe()) !== mark)
        throw new Error(`execution ${id} has another outcome when it is repeated`);
      files.changed();
      names = parse(report).names ?? names;
    }
    bridge.repeat(false);
    detector.standStill(false);
    return names;
  };

  /** @param {Extract<Request, { type: "install" }>} request @param {Blob[]} blobs */
  const install = async ({ exchange, wheels, maxBytes }, blobs) => {
    await bridge.haveLibrary(); // Python looks at all folders and archives anew, and could not wait
    /** @type {Event} */
    let ended = { type: "done", exchange };
    try {
      await packages.install(wheels, blobs, maxBytes);
    } catch (error) {
      ended = { type: "refused", exchange, message: text(error).replace(/^Error: /, "") };
    }
    bridge.end();
    post(ended);
  };

  /** @param {string} code */
  const isPlain = (code) => {
    try {
      return python.isPlain(code);
    } catch {
      return false; // memory or the stack was too small for the compiler
    }
  };

  const survey = () => {
    try {
      return python.survey();
    } catch {
      return []; // memory was too small
    }
  };

  /** @param {Promise<void>} exchange */
  const orDie = (exchange) =>
    exchange.catch((error) => {
      try {
        python.flush();
      } catch {}
      post({ type: "fatal", message: text(fatal() ?? error) }); // after a fatal error, Pyodide fails in other ways
    });

  /** Pieces of a body. The next message with a body brings the last one. @type {Uint8Array[]} */
  let parts = [];

  /** @param {{ data: [header: string, body?: Uint8Array] }} message */
  return ({ data: [header, last] }) => {
    const request = /** @type {Request} */ (parse(header));
    if (request.type !== "save") checkpoints.interrupt();
    if (request.type === "part") {
      if (last && request.encoding === "text") python.takeText(last);
      else if (last) parts.push(last);
      return;
    }
    const body = last ? join([...parts, last]) : new Uint8Array(0);
    if (last) parts = [];
    if ("timeoutMs" in request) bridge.begin(request.exchange, request.timeoutMs);
    switch (request.type) {
      case "save":
        return void orDie(save(request));
      case "restore":
        return void orDie(restore(request, /** @type {any} */ (body)));
      case "configure":
        return configure(request);
      case "install":
        return void orDie(install(request, /** @type {any} */ (body)));
      case "credit": // only native guests use it
        return;
      case "init":
        return init(request);
      case "hostReply":
        return bridge.reply(request, body);
      case "promote":
        return bridge.promote(request.exchange, request.rest);
      case "extend":
        return bridge.extend(request.exchange, request.text, request.last ?? false);
      case "check":
        return post({ type: "checked", check: request.check, plain: isPlain(request.code) });
      case "survey":
        return post({ type: "surveyed", survey: request.survey, variables: survey() });
      case "ping":
        if (!bridge.busy()) post({ type: "pong", ping: request.ping });
        return;
      case "interrupt":
        return bridge.interrupt(request.exchange, request.reason);
      case "execute":
        return void orDie(execute(request, body));
      case "writeFile":
      case "readFile":
      case "listFiles":
      case "removeFile":
      case "cellFile":
      case "look":
        return void orDie(file(request, body));
      default:
        return void orDie(variables(request, body));
    }
  };
}

/** @typedef {Extract<Request, { path: string }>} FileRequest */

/** Returns a number that stands for the outcome of a cell. @param {string} report @param {number} probe */
function markOf(report, probe) {
  let mark = probe;
  for (let at = 0; at < report.length; at++) mark = (imul(mark, 31) + report.charCodeAt(at)) >>> 0;
  return mark;
}

/**
 * Returns true when a long body leaves whole.
 * @param {{ encoding: Encoding }} event @param {Uint8Array} bytes
 */
const isMoved = ({ encoding }, bytes) =>
  encoding === "bytes" && bytes.length === bytes.buffer.byteLength && bytes.length <= MAX_MOVED_BYTES;

/** Joins the pieces of a body. @param {Uint8Array[]} pieces */
function join(pieces) {
  if (pieces.length === 1) return pieces[0];
  const whole = new Uint8Array(pieces.reduce((total, piece) => total + piece.length, 0));
  let offset = 0;
  for (const piece of pieces) {
    whole.set(piece, offset);
    offset += piece.length;
  }
  return whole;
}

/** @param {unknown} error */
const text = (error) => {
  // Errors of Emscripten's file system are no `Error`, and have no message.
  const { name, errno } = Object(error);
  return String(errno === undefined ? error : `${name} ${errno}`)
    .slice(-4000)
    .toWellFormed();
};

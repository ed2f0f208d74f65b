// The guest's entry in the browser: a classic worker that runs one Python interpreter for one sandbox.
//
// Its first message brings its parts (`BootMessage`). From then on it speaks the protocol of src/protocol.rs over a
// private port that only this file holds. Python cannot end its own turn: the event that does is posted here, when the
// interpreter has really come back.

import { createBridge } from "./bridge.js";
import { lockDown } from "./lockdown.js";
import { loadRuntime } from "./runtime.js";

/** @import { Encoding, Event, Request } from "../pkg/sandglass.js" */
/** @import { BootMessage } from "./start-worker.js" */

const { parse, stringify } = JSON;
const NOTHING = new Uint8Array(0);

self.onmessage = async ({ data }) => {
  self.onmessage = null;
  const { assets, files, port, mailbox } = /** @type {BootMessage} */ (data);
  const postMessage = MessagePort.prototype.postMessage.bind(port);

  /** @type {(event: Event, body?: Uint8Array) => void} */
  const post = (event, body) => {
    if (body) postMessage([stringify(event), body], [body.buffer]);
    else postMessage([stringify(event)]);
  };

  try {
    const bridge = createBridge(post, mailbox);
    const runtime = await loadRuntime(assets, files, bridge);
    lockDown();
    const handle = createHandler(post, bridge, runtime);
    const receive = assembleBodies(handle);
    port.onmessage = ({ data: [header, body] }) => receive(parse(header), body);
  } catch (error) {
    post({ type: "bootFailed", message: text(error) });
  }
};

/**
 * Joins the pieces of a body with the message that they precede.
 * @param {(request: Request, body: Uint8Array) => void} handle
 */
function assembleBodies(handle) {
  /** @type {Uint8Array[]} */
  let parts = [];
  /** @param {Request} request @param {Uint8Array | undefined} body */
  return (request, body) => {
    if (request.type === "part") {
      parts.push(body ?? NOTHING);
    } else if (!body || parts.length === 0) {
      handle(request, body ?? NOTHING);
    } else {
      parts.push(body);
      const whole = new Uint8Array(parts.reduce((total, part) => total + part.length, 0));
      let offset = 0;
      for (const part of parts) {
        whole.set(part, offset);
        offset += part.length;
      }
      parts = [];
      handle(request, whole);
    }
  };
}

/**
 * Puts requests to Python, one turn at a time.
 * @param {(event: Event, body?: Uint8Array) => void} post
 * @param {ReturnType<typeof createBridge>} bridge
 * @param {Awaited<ReturnType<typeof loadRuntime>>} runtime
 */
function createHandler(post, bridge, runtime) {
  const { python, info } = runtime;

  /** @type {(request: Request, body: Uint8Array) => Promise<void>} */
  const turn = async (request, body) => {
    if (!("turn" in request) || request.type === "interrupt") return;
    const { turn } = request;
    bridge.begin(turn, request.timeoutMs);
    try {
      if (request.type === "execute") {
        const [report, encoding, final] = await python.execute(request.execution, request.code);
        const execution = parse(report);
        execution.stopped = bridge.end();
        post({ type: "executed", turn, execution, encoding: /** @type {Encoding} */ (encoding) }, final);
      } else if (request.type === "setVariable") {
        await python.setVariable(request.name, request.encoding, body);
        bridge.end();
        post({ type: "done", turn });
      } else {
        const asked = request.type === "getVariable" ? python.getVariable(request.name) : python.listVariables();
        const [encoding, value] = await asked;
        bridge.end();
        post({ type: "value", turn, encoding: /** @type {Encoding} */ (encoding) }, value);
      }
    } catch (error) {
      bridge.end();
      if (python.isRefusal(error)) post({ type: "refused", turn, message: python.reason(error) });
      else post({ type: "fatal", message: text(error) });
    }
  };

  /** @type {(request: Request, body: Uint8Array) => void} */
  return (request, body) => {
    switch (request.type) {
      case "init":
        if (request.version === info.version) python.configure(stringify(request.config));
        return post({ type: "ready", version: info.version, guest: { ...info.guest, ...bridge.capabilities } });
      case "hostReply":
        return bridge.reply(request, body);
      case "interrupt":
        return bridge.interrupt(request.turn, request.reason);
      default:
        void turn(request, body);
    }
  };
}

/** @param {unknown} error */
const text = (error) => String(error instanceof Error && error.stack ? error.stack : error).slice(0, 4000);

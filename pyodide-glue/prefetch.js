// Begins the work for a page's first guest while the supervisor is still being compiled: requests its files, loads its
// frame, and starts its worker there.
// Decisions: docs/internals/guest-in-a-browser.md.

import { assetUrl } from "./assets.js";
import { createFrame } from "./frame.js";
import { findKept, findModule } from "./kept-files.js";

/** @import { SandboxOptions } from "../pkg/sandglass.js" */
/** @import { Frame } from "./frame.js" */

/**
 * A request under way, and its body. `kept`, which is set before the response comes, tells if the browser has kept the file.
 * @typedef {{ response: Promise<Response>, body?: Promise<any>, kept?: boolean }} Begun
 */
/**
 * The frame of a guest. One whose worker is being started has the page's ends of its ports, and the snapshot that it gets, if
 * the browser has kept one.
 * @typedef {Frame & { port?: MessagePort, control?: MessagePort, kept?: Promise<Blob | undefined> }} Place
 */

/** @type {Place | undefined} */
let place;
/** The address of the script that the place's worker is started from. @type {string | undefined} */
let origin;
/** @type {Map<string, Begun>} */
const requests = new Map();

/** Begins the work for a sandbox of these options, which nobody has checked yet. @param {SandboxOptions} [options] */
export function prefetch(options) {
  const { isolation = "frame", assetsUrl, backend } = Object(options);
  if (backend) return;
  // In a context that is not secure, a request has to name the file's hash.
  const mayFetch = globalThis.crypto?.subtle !== undefined;
  if (mayFetch) {
    const address = (/** @type {string} */ asset) =>
      assetUrl(asset, typeof assetsUrl === "string" ? assetsUrl : undefined);
    origin = address("script");
    request(origin, fetch(origin), (response) => response.arrayBuffer());
    const wasm = address("wasm");
    const module = findModule().then((kept) => {
      begun.kept = kept !== undefined;
      return kept ?? fetch(wasm);
    });
    const begun = request(wasm, module, (response) => response.blob());
  }
  if (isolation !== "frame" || !globalThis.document) return;
  place = createFrame();
  if (mayFetch) startEarly(place);
}

/**
 * Holds a request of a file.
 * @param {string} url @param {Promise<Response>} response @param {(response: Response) => Promise<ArrayBuffer | Blob>} read
 */
function request(url, response, read) {
  const body = response.then(read);
  body.catch(() => {}); // the taker hears of the failure
  /** @type {Begun} */
  const begun = { response, body };
  requests.set(url, begun);
  return begun;
}

/**
 * Starts the worker of a guest in its frame, and has the module compiled there. Nobody has checked the files yet, and the frame
 * confines them. If one cannot be had, or is a wrong one, the supervisor finds out by itself, and ends the guest.
 * @param {Place} place
 */
function startEarly(place) {
  const [{ port1: port, port2: farPort }, { port1: control, port2: farControl }] = [
    new MessageChannel(),
    new MessageChannel(),
  ];
  const [script, wasm] = [...requests.values()].map(({ body }) => body);
  const kept = findKept();
  Object.assign(place, { port, control, kept });
  const isLoaded = new Promise((resolve) => place.element.addEventListener("load", resolve, { once: true }));
  const stop = () => {};
  Promise.all([script, isLoaded]).then(([bytes]) => {
    // As a Blob, which the frame gets without a copy.
    place.element.contentWindow?.postMessage(new Blob([bytes]), "*", [farPort, farControl]);
  }, stop);
  wasm?.then((blob) => control.postMessage({ wasm: blob }), stop);
  void kept.then((snapshot) => snapshot && control.postMessage({ kept: snapshot }));
}

/**
 * A frame for a guest of the files below an address: the one that was begun for them, if it is still there.
 * @param {string} base  empty: the package's own
 * @returns {Place}
 */
export function openFrame(base) {
  const begun = place;
  if (!begun || (origin && assetUrl("script", base) !== origin)) return createFrame();
  place = undefined;
  return begun;
}

/** Takes the prefetched request of an address, once. @param {string} url */
export function takeRequest(url) {
  const request = requests.get(url);
  requests.delete(url);
  return request;
}

/** Ends what was begun and nobody has taken. */
export function discardPrefetched() {
  place?.element.remove();
  place?.port?.close();
  place?.control?.close();
  place = undefined;
  requests.clear();
}

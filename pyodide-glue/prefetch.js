// Begins the work for a page's first guest while the supervisor is still being compiled: requests its files, loads its
// frame, and starts its worker there.
// Decisions: docs/internals/guest-in-a-browser.md.

import { integrity } from "../dist/assets.js";
import { assetUrl } from "./assets.js";
import { createFrame } from "./frame.js";
import { findKept } from "./kept-snapshot.js";

/** @import { SandboxOptions } from "../pkg/sandglass.js" */
/** @import { Frame } from "./frame.js" */

/**
 * A request under way, its body, and the body's SHA-256 where that is asked for.
 * @typedef {{ response: Promise<Response>, body?: Promise<ArrayBuffer | Blob>, digest?: Promise<ArrayBuffer> }} Begun
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
  if (isolation === "frame" && globalThis.document) place = createFrame();
  // In a context that is not secure, a request has to name the file's hash.
  if (!globalThis.crypto?.subtle) return;
  const address = (/** @type {string} */ asset) =>
    assetUrl(asset, typeof assetsUrl === "string" ? assetsUrl : undefined);
  origin = address("script");
  const script = request(origin, (response) => response.arrayBuffer());
  const digest = script.then((bytes) => crypto.subtle.digest("SHA-256", bytes));
  digest.catch(() => {});
  Object.assign(requests.get(origin) ?? {}, { digest });
  const wasm = request(address("wasm"), (response) => response.blob());
  if (place) startEarly(place, script, digest, wasm);
}

/**
 * Requests a file.
 * @template {ArrayBuffer | Blob} T
 * @param {string} url @param {(response: Response) => Promise<T>} read
 */
function request(url, read) {
  const response = fetch(url);
  const body = response.then(read);
  body.catch(() => {}); // the taker hears of the failure
  requests.set(url, { response, body });
  return body;
}

/**
 * Starts the worker of a guest in its frame, and has the module compiled there. A file that cannot be had, or is a wrong one,
 * stops it; the supervisor finds out by itself.
 * @param {Place} place
 * @param {Promise<ArrayBuffer>} script @param {Promise<ArrayBuffer>} digest @param {Promise<Blob>} wasm
 */
function startEarly(place, script, digest, wasm) {
  const [{ port1: port, port2: farPort }, { port1: control, port2: farControl }] = [
    new MessageChannel(),
    new MessageChannel(),
  ];
  const kept = findKept();
  Object.assign(place, { port, control, kept });
  const loaded = new Promise((resolve) => place.element.addEventListener("load", resolve, { once: true }));
  const start = async () => {
    const [bytes, hash] = await Promise.all([script, digest, loaded]);
    if (`sha256-${btoa(String.fromCharCode(...new Uint8Array(hash)))}` !== integrity.script) return;
    // As a Blob, which the frame gets without a copy.
    place.element.contentWindow?.postMessage(new Blob([bytes]), "*", [farPort, farControl]);
  };
  const stop = () => {};
  start().catch(stop);
  wasm.then((blob) => control.postMessage({ wasm: blob }), stop);
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

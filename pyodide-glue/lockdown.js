// Takes from the worker what guest code must not have. The frame's policy already closes the network and `eval`; this
// makes the same true of `isolation: "worker"` as far as a worker can, and keeps what the glue stands on from being
// changed under it.
// Decisions: docs/internals/guest-in-a-browser.md.

/** What is left on the global object; everything else is removed along its whole prototype chain. */
const KEPT = new Set(
  `AggregateError Array ArrayBuffer BigInt BigInt64Array BigUint64Array Boolean DataView Date Error EvalError
  Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array Intl Iterator JSON Map Math NaN Number Object Promise
  Proxy RangeError ReferenceError Reflect RegExp Set String Symbol SyntaxError TypeError URIError Uint16Array Uint32Array
  Uint8Array Uint8ClampedArray WeakMap WeakRef WeakSet FinalizationRegistry decodeURI decodeURIComponent encodeURI
  encodeURIComponent escape unescape isFinite isNaN parseFloat parseInt undefined globalThis self console crypto performance
  TextDecoder TextEncoder DOMException WebAssembly constructor toString hasOwnProperty valueOf`.split(/\s+/),
);

/** Frames that errors tell: V8's own default. */
const STACK_TRACE_LIMIT = 10;
/** What messages and waiting rely on; frozen. */
const TypedArray = Object.getPrototypeOf(Uint8Array);
const FROZEN = [
  ...[Promise, Map, Set, Array, String, ArrayBuffer, Uint8Array, TypedArray],
  ...[MessagePort, MessageEvent, Event, EventTarget],
];
const ITERATORS = [new Map().values(), [].values()].map((iterator) => Object.getPrototypeOf(iterator));

/**
 * Keeps the guest out of the page's console: a flood of lines costs the page, and a line looks like the page's own. Called before
 * Pyodide takes methods of the console. What goes wrong while it starts is told as `bootFailed`.
 */
export function silence() {
  const silent = () => {};
  for (const name of Reflect.ownKeys(console)) Reflect.set(console, name, silent);
  Object.freeze(console);
  // Browsers write each of these there.
  self.addEventListener("unhandledrejection", (event) => event.preventDefault());
}

export function lockDown() {
  for (let holder = self; holder && holder !== Object.prototype; holder = Object.getPrototypeOf(holder)) {
    for (const name of Reflect.ownKeys(holder)) {
      if (typeof name !== "string" || KEPT.has(name)) continue;
      if (!Reflect.deleteProperty(holder, name)) {
        Reflect.defineProperty(holder, name, { value: undefined, writable: false });
      }
    }
  }
  for (const object of [...FROZEN, ...FROZEN.map((type) => type.prototype), ...ITERATORS, JSON]) Object.freeze(object);
  // V8 calls the first with all that is on the stack, and looks at the other for each error.
  Object.defineProperty(Error, "prepareStackTrace", { value: undefined });
  Object.defineProperty(Error, "stackTraceLimit", { value: STACK_TRACE_LIMIT, writable: false, configurable: false });
  // Pyodide cannot live with a frozen one. This much keeps `toJSON` and setters out of the messages that are made here.
  Object.preventExtensions(Object.prototype);
  // Through the first two goes every text of Python's, and through the other Pyodide's names and errors.
  for (const type of [TextEncoder, TextDecoder, RegExp]) for (const each of [type, type.prototype]) Object.freeze(each);
}

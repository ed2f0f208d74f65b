// Removes from the worker what guest code must not have. The frame's policy already closes the network and `eval`. This
// module does the same for `isolation: "worker"`, as far as a worker can, and freezes the objects that the glue depends
// on.
// Decisions: docs/internals/guest-in-a-browser.md.

/** The properties that stay on the global object. All others are removed along its whole prototype chain. */
const KEPT = new Set(
  `AggregateError Array ArrayBuffer BigInt BigInt64Array BigUint64Array Boolean DataView Date Error EvalError
  Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array Intl Iterator JSON Map Math NaN Number Object Promise
  Proxy RangeError ReferenceError Reflect RegExp Set String Symbol SyntaxError TypeError URIError Uint16Array Uint32Array
  Uint8Array Uint8ClampedArray WeakMap WeakRef WeakSet FinalizationRegistry decodeURI decodeURIComponent encodeURI
  encodeURIComponent escape unescape isFinite isNaN parseFloat parseInt undefined globalThis self console crypto performance
  TextDecoder TextEncoder DOMException WebAssembly constructor toString hasOwnProperty valueOf`.split(/\s+/),
);

/** The number of frames in an error's stack: V8's default. */
const STACK_TRACE_LIMIT = 10;
/** The types that messages and waiting depend on. */
const TypedArray = Object.getPrototypeOf(Uint8Array);
const FROZEN = [
  ...[Promise, Map, Set, Array, String, ArrayBuffer, Uint8Array, TypedArray],
  ...[MessagePort, MessageEvent, Event, EventTarget],
];
const ITERATORS = [new Map().values(), [].values()].map((iterator) => Object.getPrototypeOf(iterator));

/**
 * Keeps the guest out of the page's console: a flood of lines slows the page down, and a line looks like the page's
 * own. Call it before Pyodide takes the console's methods. A failure of the start is reported as `bootFailed` instead.
 */
export function silence() {
  const silent = () => {};
  for (const name of Reflect.ownKeys(console)) Reflect.set(console, name, silent);
  Object.freeze(console);
  // Browsers write each unhandled rejection to the console.
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
  // V8 calls `prepareStackTrace` with everything on the stack, and reads `stackTraceLimit` for each error.
  Object.defineProperty(Error, "prepareStackTrace", { value: undefined });
  Object.defineProperty(Error, "stackTraceLimit", { value: STACK_TRACE_LIMIT, writable: false, configurable: false });
  // Pyodide cannot run with a frozen `Object.prototype`. Preventing extensions keeps `toJSON` and setters out of our
  // messages.
  Object.preventExtensions(Object.prototype);
  // The encoders see every text of Python's, and RegExp sees Pyodide's names and errors.
  for (const type of [TextEncoder, TextDecoder, RegExp]) for (const each of [type, type.prototype]) Object.freeze(each);
}

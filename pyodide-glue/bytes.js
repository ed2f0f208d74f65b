// Copies bytes from guest code safely: the guest may have replaced a `Uint8Array`'s getters by its own.

// Taken before any guest code runs: it may replace them.
const { Uint8Array } = self;
const { apply } = Reflect;
const prototype = Object.getPrototypeOf(Uint8Array.prototype);
const [buffer, offset, length, kind] = ["buffer", "byteOffset", "byteLength", Symbol.toStringTag].map(
  (name) => /** @type {() => any} */ (Object.getOwnPropertyDescriptor(prototype, name)?.get),
);

/**
 * Copies bytes into a `Uint8Array` without anything of the guest's. Throws a TypeError for anything but a `Uint8Array`.
 * @param {unknown} bytes
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function plainBytes(bytes) {
  if (apply(kind, bytes, []) !== "Uint8Array") throw new TypeError("a body is a Uint8Array");
  return new Uint8Array(apply(buffer, bytes, []), apply(offset, bytes, []), apply(length, bytes, []));
}

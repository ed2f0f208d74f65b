// Splits Python's module into its code and its data. A guest that starts from a snapshot finds the data in there, so a third of the
// module need not be read.
// Decisions: docs/internals/guest-in-a-browser.md.

import { moduleParts } from "../dist/assets.js";

/**
 * A module without its data, and its section of data. Both are read from the whole when they are needed.
 * @param {Blob} module
 * @returns {{ wasm: Blob, data: Blob }}
 */
export function splitModule(module) {
  const [count, code, data, rest] = moduleParts;
  return {
    wasm: new Blob([module.slice(0, count), module.slice(code, data), module.slice(rest)]),
    data: module.slice(data, rest),
  };
}

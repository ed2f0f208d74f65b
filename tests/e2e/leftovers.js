// Counts of things that a sandbox may leave behind in a page.

/** Counts the page's timers from now on, by their delays. Functions taken before this call are not counted. */
export function countTimers() {
  const page = /** @type {any} */ (globalThis);
  /** @type {Map<unknown, string>} */
  const timers = new Map();
  const { setTimeout, clearTimeout } = globalThis;
  page.setTimeout = (/** @type {() => void} */ act, /** @type {number} */ ms) => {
    const timer = setTimeout(() => {
      timers.delete(timer);
      act();
    }, ms);
    timers.set(timer, `${ms} ms`);
    return timer;
  };
  page.clearTimeout = (/** @type {number} */ timer) => {
    timers.delete(timer);
    clearTimeout(timer);
  };
  return () => [...timers.values()];
}

/** The number of JavaScript values that the supervisor holds. @param {unknown} supervisor  the supervisor's exports */
export function countReferences(supervisor) {
  const table = /** @type {any} */ (supervisor).__wbindgen_externrefs;
  let count = 0;
  for (let index = 0; index < table.length; index += 1) count += table.get(index) == null ? 0 : 1;
  return count;
}

// Tools of tests in a page: time, random numbers, and comparisons. They use the page's own timers, which tests may count.

const { clearTimeout, setTimeout } = globalThis;

/** @param {number} ms */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Waits until a condition holds. Rejects if it does not hold in time.
 * @template T
 * @param {() => T | Promise<T>} condition @param {string} what
 * @param {number} [every]  milliseconds between two looks: more for a condition that costs much to look at
 * @returns {Promise<NonNullable<T>>} the condition's first true value
 */
export async function until(condition, what, ms = 90_000, every = 5) {
  for (const end = performance.now() + ms; ; await pause(every)) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`${what}: not within ${ms} ms`);
  }
}

/** Awaits a promise. Rejects if it takes longer than `ms`. @template T @param {Promise<T>} promise @param {string} what @returns {Promise<T>} */
export function within(promise, what, ms = 90_000) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${what}: it hangs, nothing within ${ms} ms`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/**
 * Makes a sandbox of a kept session. A page that has just gone may have the session for another moment.
 * @template T @param {() => Promise<T>} make @returns {Promise<T>}
 */
export async function onceFree(make) {
  for (const end = performance.now() + 60_000; ;) {
    try {
      return await make();
    } catch (error) {
      const { code } = /** @type {{ code?: string }} */ (error);
      if (code !== "persist_in_use" || performance.now() > end) throw error;
    }
  }
}

/** A list with the problem of a value that is not as wanted; empty if it is. @param {unknown} actual @param {unknown} wanted @param {string} what */
export function unequal(actual, wanted, what) {
  const [one, other] = [JSON.stringify(actual), JSON.stringify(wanted)];
  return one === other ? [] : [`${what}: ${one?.slice(0, 600)}, not ${other?.slice(0, 600)}`];
}

/** Random numbers from 0 to below 1, the same for the same seed (mulberry32). @param {number} seed */
export function randomness(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

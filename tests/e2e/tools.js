// Tools of tests in a page: time, random numbers, and comparing. They use the page's own timers, which tests may count.

const { clearTimeout, setTimeout } = globalThis;

/** @param {number} ms */
export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * Waits until something holds; rejects when it does not.
 * @template T
 * @param {() => T | Promise<T>} condition @param {string} what
 * @returns {Promise<NonNullable<T>>} what the condition gave, once that is true
 */
export async function until(condition, what, ms = 30_000) {
  for (const end = performance.now() + ms; ; await pause(5)) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`${what}: not within ${ms} ms`);
  }
}

/** Rejects when a promise takes longer. @template T @param {Promise<T>} promise @param {string} what @returns {Promise<T>} */
export function within(promise, what, ms = 20_000) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${what}: it hangs, nothing within ${ms} ms`)), ms);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

/** The problem with a value, if it has one. @param {unknown} actual @param {unknown} wanted @param {string} what */
export function unequal(actual, wanted, what) {
  const [one, other] = [JSON.stringify(actual), JSON.stringify(wanted)];
  return one === other ? [] : [`${what}: ${one?.slice(0, 600)}, not ${other?.slice(0, 600)}`];
}

/** Random numbers below 1, the same for the same seed (mulberry32). @param {number} seed */
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

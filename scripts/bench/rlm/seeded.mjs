// Chance from seeds, so that a run can be repeated.
import { createHash } from "node:crypto";

/** A number from 0 up to 1, drawn from texts. The order of the draws does not matter. @param {...(string | number)} texts */
export function drawn(...texts) {
  return createHash("sha256").update(texts.join("\0")).digest().readUInt32LE(0) / 2 ** 32;
}

/** A stream of chance. */
export class Dice {
  #seed;
  #drawn = 0;

  /** @param {...(string | number)} seed */
  constructor(...seed) {
    this.#seed = (drawn(...seed) * 2 ** 32) | 0;
  }

  /** A number from 0 up to 1. Source: Mulberry32, by Tommy Ettinger (public domain). */
  next() {
    this.#drawn += 1;
    let mixed = (this.#seed + Math.imul(this.#drawn, 0x6d2b79f5)) | 0;
    mixed = Math.imul(mixed ^ (mixed >>> 15), 1 | mixed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  }

  /** An integer from 0 up to `end`. @param {number} end */
  below(end) {
    return Math.floor(this.next() * end);
  }

  /** @template T @param {readonly T[]} list @returns {T} */
  any(list) {
    return /** @type {T} */ (list[this.below(list.length)]);
  }

  /** Different items of a list, in an order by chance. @template T @param {readonly T[]} list @param {number} count @returns {T[]} */
  some(list, count) {
    const left = [...list];
    return Array.from({ length: Math.min(count, left.length) }, () => left.splice(this.below(left.length), 1)).flat();
  }
}

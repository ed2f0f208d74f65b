// Where a view gets its events from: a run that happens now, or one that was recorded.

/** @import { RunEvent } from "./state.js" */

/** Nobody wants to wait for longer than this for the next event of a recording. */
const MAX_GAP_MS = 900;

/**
 * @typedef {object} Source
 * @property {(elapsed: number) => void} tick  milliseconds have passed
 * @property {() => RunEvent | undefined} next  the next event that is due
 * @property {number} time  of the run, in milliseconds
 * @property {boolean} active  whether more will come by itself
 */

/** A run that happens now. @implements {Source} */
export class Live {
  /** @type {RunEvent[]} */
  #waiting = [];
  #at = 0;
  #began = performance.now();
  #ended = false;
  time = 0;

  /** @param {RunEvent} event  which has happened just now */
  push(event) {
    this.#began = performance.now() - event.time;
    this.#waiting.push(event);
  }

  end() {
    this.#ended = true;
  }

  get active() {
    return !this.#ended || this.#at < this.#waiting.length;
  }

  tick() {
    if (!this.#ended) this.time = performance.now() - this.#began;
  }

  next() {
    const event = this.#waiting[this.#at];
    if (!event) return undefined;
    this.#at++;
    if (this.#at === this.#waiting.length) {
      this.#waiting = [];
      this.#at = 0;
    }
    return event;
  }
}

/** A recorded run, which starts at its end: everything is to be seen at once. @implements {Source} */
export class Player {
  #events;
  /** How many events have been shown. */
  position = 0;
  /** How many there should be, as soon as possible. */
  #target;
  playing = false;
  speed = 1;
  time = 0;

  /** @param {RunEvent[]} events @param {number} [position] */
  constructor(events, position = events.length) {
    this.#events = events;
    this.#target = position;
  }

  get length() {
    return this.#events.length;
  }

  get active() {
    return this.playing || this.position < this.#target;
  }

  play() {
    this.playing = true;
  }

  pause() {
    this.playing = false;
    this.#target = this.position;
  }

  /**
   * Goes to a place of the recording. To go back, everything is shown anew: whoever shows it has to begin afresh.
   * @param {number} position
   * @returns {boolean} whether that is so
   */
  seek(position) {
    const isBack = position < this.position;
    if (isBack) this.position = this.time = 0;
    this.#target = Math.min(position, this.length);
    return isBack;
  }

  /** @param {number} elapsed */
  tick(elapsed) {
    const due = this.#events[this.position];
    if (!this.playing || !due || this.position < this.#target) return;
    this.time = Math.max(this.time + elapsed * this.speed, due.time - MAX_GAP_MS);
  }

  next() {
    const event = this.#events[this.position];
    if (!event) {
      this.playing = false;
      return undefined;
    }
    const isWanted = this.position < this.#target;
    if (!isWanted && !(this.playing && event.time <= this.time)) return undefined;
    this.position++;
    this.#target = Math.max(this.#target, this.position);
    this.time = Math.max(this.time, event.time);
    return event;
  }
}

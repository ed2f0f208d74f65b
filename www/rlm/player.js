// Sources of events for the view of a run: `Live` is a run that happens now, `Player` a recorded one.

/** @import { RunEvent } from "./state.js" */

/** Longest pause between two events of a recording that is played; longer pauses are shortened. */
const MAX_GAP_MS = 900;

/**
 * @typedef {object} Source
 * @property {(elapsed: number) => void} tick  moves time on by some milliseconds
 * @property {() => RunEvent | undefined} next  the next event that is due
 * @property {number} time  milliseconds since the run began
 * @property {boolean} active  true while more events come by themselves
 */

/** A run that happens now. @implements {Source} */
export class Live {
  /** @type {RunEvent[]} */
  #waiting = [];
  #at = 0;
  #began = performance.now();
  #ended = false;
  time = 0;

  /** @param {RunEvent} event  an event of this moment */
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

/** A recorded run. It starts at its end, so that all of it is visible at once. @implements {Source} */
export class Player {
  #events;
  /** The number of events shown. */
  position = 0;
  /** The number of events to show as soon as possible. */
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
   * Goes to a place of the recording. Going back starts over from the first event, so the view must be reset.
   * @param {number} position
   * @returns {boolean} true if the view must be reset
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

// Notes what clock and chance answer to an execution, and gives the noted answers to a later run of it.
//
// Each note is its kind (one byte), the length of its content (four bytes), and its content. A run gets the notes of earlier runs first, in
// their order. Code that asks for something else than the next note has takes another way than the earlier run. From the end of the notes
// on, the world itself answers, and the answers are noted.
// Decisions: docs/internals/saving-and-restoring.md.

// Taken before any guest code runs: it may replace them.
const { DataView, Uint8Array } = self;

/** The most bytes of notes of an execution. */
const MAX_NOTED = 1 << 20;
const HEAD = 5;
/**
 * The kinds of notes, and what code does then.
 * @satisfies {Record<string, [number, string]>}
 */
const KINDS = {
  date: [1, "asks for the date"],
  now: [2, "asks for the time"],
  clock: [3, "reads a clock"],
  random: [4, "draws random bytes"],
  times: [5, "asks for the times of a file that it has written"],
  slept: [6, "sleeps"],
  calls: [7, "calls the host"],
};
/** @typedef {keyof typeof KINDS} Kind */
const NAMES = /** @type {Kind[]} */ (Object.keys(KINDS));
const { max } = Math;

/**
 * @param {Uint8Array} noted  the notes of earlier runs
 * @param {{ broke: (why: string) => void, differs: (what: string) => void }} host  hears of what cannot be noted, and of another way
 */
export function createRecorder(noted, host) {
  const known = new DataView(noted.buffer, noted.byteOffset, noted.byteLength);
  let at = 0;
  /** True once the notes are of no use any more. */
  let isOff = false;
  let fresh = new Uint8Array(256);
  let size = 0;
  /** The bytes of all notes of this execution. */
  let total = noted.length;

  /** @param {string} why */
  const end = (why) => {
    if (isOff) return;
    if (at < noted.length) return differ(why);
    isOff = true;
    size = 0;
    host.broke(why);
  };
  /** @param {string} what */
  const differ = (what) => {
    if (isOff) return;
    isOff = true;
    host.differs(what);
  };

  /** @param {Kind} kind @param {number} length @returns {Uint8Array | undefined} the place for the note's content */
  const add = (kind, length) => {
    total += HEAD + length;
    if (total > MAX_NOTED) return void end("it asked for the time, or for random numbers, too often");
    if (size + HEAD + length > fresh.length) {
      const larger = new Uint8Array(max(2 * fresh.length, size + HEAD + length));
      larger.set(fresh.subarray(0, size));
      fresh = larger;
    }
    fresh[size] = KINDS[kind][0];
    new DataView(fresh.buffer).setUint32(size + 1, length, true);
    const content = fresh.subarray(size + HEAD, size + HEAD + length);
    size += HEAD + length;
    return content;
  };

  /** Takes the next note's content; undefined where the notes end. @param {Kind} kind @param {number} [length] */
  const next = (kind, length) => {
    if (isOff || at >= noted.length) return undefined;
    const its = known.getUint8(at);
    const long = at + HEAD <= noted.length ? known.getUint32(at + 1, true) : Infinity;
    const name = NAMES.find((name) => KINDS[name][0] === its);
    if (!name || at + HEAD + long > noted.length) return void differ("the journal is damaged");
    if (name !== kind) return void differ(`the code ${KINDS[kind][1]} where it ${KINDS[name][1]} in the journal`);
    if (length !== undefined && length !== long)
      return void differ(`the code ${KINDS[kind][1]} (${length}) where the journal has ${long}`);
    at += HEAD + long;
    return noted.subarray(at - long, at);
  };

  /** Returns the noted number, or notes the one that `ask` returns. @param {"date" | "now"} kind @param {() => number} ask */
  const number = (kind, ask) => {
    const content = next(kind, 8);
    if (content) return new DataView(content.buffer, content.byteOffset, 8).getFloat64(0, true);
    const value = ask();
    const place = isOff ? undefined : add(kind, 8);
    if (place) new DataView(place.buffer, place.byteOffset, 8).setFloat64(0, value, true);
    return value;
  };

  return {
    number,

    /**
     * Puts noted bytes in place, or notes those that are there after `ask`. Returns what `ask` returns: 0, if it is not asked.
     * @param {"clock" | "random" | "times"} kind @param {() => any} ask @param {() => Uint8Array} place
     */
    bytes(kind, ask, place) {
      const target = place();
      const content = next(kind, target.length);
      if (content) {
        target.set(content);
        return 0;
      }
      const result = ask();
      if (!isOff) {
        const now = place(); // memory may have grown
        add(kind, now.length)?.set(now);
      }
      return result;
    },

    /** Returns true if the code has slept in the earlier run. */
    get hasSlept() {
      return next("slept", 0) !== undefined;
    },

    /** Notes the end of a sleep. */
    slept() {
      if (!isOff) add("slept", 0);
    },

    /** Notes that Python makes so many calls. @param {number} count */
    calls(count) {
      const content = next("calls", 4);
      if (content) {
        const its = new DataView(content.buffer, content.byteOffset, 4).getUint32(0, true);
        if (its !== count) differ(`the code makes ${count} calls at once where the journal has ${its}`);
        return;
      }
      const place = isOff ? undefined : add("calls", 4);
      if (place) new DataView(place.buffer, place.byteOffset, 4).setUint32(0, count, true);
    },

    /** Notes that the execution cannot be repeated. */
    end,

    /** Takes the notes since the last time; undefined if there are none. */
    take() {
      if (size === 0) return undefined;
      const taken = fresh.slice(0, size);
      size = 0;
      return taken;
    },

    /** Ends the run. Code that has not asked for all that is noted has taken another way. */
    finish() {
      if (isOff || at >= noted.length) return;
      const name = NAMES.find((name) => KINDS[name][0] === known.getUint8(at));
      differ(`the code ended where it ${name ? KINDS[name][1] : "goes on"} in the journal`);
    },
  };
}

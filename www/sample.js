// The sample text: the log book of an imaginary harbour, made by a seeded generator.

import { Slices } from "./slices.js";

const SHIPS = ["Meridian", "Halcyon", "Saltmarsh", "Petrel", "Low Tide", "Ember", "Quill", "Marigold", "Northing"];
const CARGO = ["oranges", "hourglasses", "slate", "linen", "lamp oil", "tea", "rope", "barley", "window glass"];
const PEOPLE = ["Ada", "Bram", "Chidi", "Dorte", "Elif", "Farid", "Greta", "Hana"];
const WIND = ["calm", "a light breeze", "fresh wind", "half a gale"];

/** The facts that a question can find. */
const NEEDLES = [
  [0.31, "warn", "One crate of hourglasses is missing from the Petrel's manifest; Hana begins a search."],
  [0.74, "note", "The missing crate of hourglasses was found aboard the Meridian, under the sailcloth in hold 3."],
];

/** A repeatable stream of numbers from 0 to below 1 (mulberry32). @param {number} seed */
function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The log book: the same text for the same arguments. */
export function harbourLog(lines = 5000, seed = 1) {
  return [...book(lines, seed)].join("");
}

/** Like `harbourLog`, in slices that do not block the page. */
export async function harbourLogSlowly(lines = 5000, seed = 1) {
  const written = [];
  const slices = new Slices();
  for (const line of book(lines, seed)) {
    written.push(line);
    if (slices.isOver) await slices.next();
  }
  return written.join("");
}

/** The beginning of that text. */
export function harbourLogPeek(lines = 5000, seed = 1) {
  const pages = book(lines, seed);
  return Array.from({ length: 6 }, () => pages.next().value ?? "").join("");
}

function* book(/** @type {number} */ lines, /** @type {number} */ seed) {
  const next = random(seed);
  const any = (/** @type {string[]} */ list) => /** @type {string} */ (list[Math.floor(next() * list.length)]);
  const upTo = (/** @type {number} */ most) => 1 + Math.floor(next() * most);
  const events = [
    () => `The ${any(SHIPS)} unloads ${upTo(40) + 1} crates of ${any(CARGO)}.`,
    () => `The ${any(SHIPS)} takes on ${upTo(40) + 1} crates of ${any(CARGO)}, signed for by ${any(PEOPLE)}.`,
    () =>
      `${any(PEOPLE)} relieves ${any(PEOPLE)} at the lamp; wind ${any(WIND)} from the ${any(["north", "west", "south"])}.`,
    () => `The ${any(SHIPS)} is sighted ${upTo(12)} miles out, waiting for the tide.`,
    () => `Berth fee of ${upTo(90)} marks paid by the master of the ${any(SHIPS)}.`,
    () => `Crane ${upTo(4)} stops for ${upTo(50)} minutes: ${any(["a worn rope", "a jammed gear", "lunch"])}.`,
  ];
  const needles = new Map(NEEDLES.map(([at, level, text]) => [Math.floor(Number(at) * lines), { level, text }]));
  let minutes = Date.UTC(2031, 2, 1) / 60_000;
  for (let line = 0; line < lines; line++) {
    minutes += upTo(17);
    const stamp = new Date(minutes * 60_000).toISOString().slice(0, 16).replace("T", " ");
    const { level, text } = needles.get(line) ?? {
      level: next() < 0.06 ? "warn" : "note",
      text: /** @type {() => string} */ (events[Math.floor(next() * events.length)])(),
    };
    yield `${stamp}  ${level}  berth ${upTo(9)}  ${text}\n`;
  }
}

// Codes of which one comes, for the turns of a recorded session.
import { createHash } from "node:crypto";

const COUNT = 5;
/** Another one gives other codes, in another order. */
const SEED = 1;

/**
 * A turn's own code among others of its session, in an order that is the same in each run.
 * @param {string[]} codes  those of all turns
 * @param {number} at  the turn
 */
export function candidates(codes, at) {
  const own = codes[at];
  if (!own) return [];
  /** @type {(kind: string) => (one: string, other: string) => number} */
  const byChance = (kind) => (one, other) => {
    const [a, b] = [one, other].map((code) =>
      createHash("sha256").update(`${SEED} ${kind} ${at} ${code}`).digest("hex"),
    );
    return a < b ? -1 : 1;
  };
  const others = [...new Set(codes)].filter((code) => code && code !== own).toSorted(byChance("which"));
  return [own, ...others.slice(0, COUNT - 1)].toSorted(byChance("order"));
}

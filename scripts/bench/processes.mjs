// What a process and all of its descendants use. Linux.
import { readFileSync, readdirSync } from "node:fs";

/** The kernel counts a second as so many ticks, everywhere. */
const TICKS = 100;

/** The proportional set size: what they share counts once. @param {number | undefined} root  its id */
export function megabytes(root) {
  let kilobytes = 0;
  for (const id of family(root).keys()) {
    try {
      kilobytes += Number(/^Pss: +(\d+)/m.exec(readFileSync(`/proc/${id}/smaps_rollup`, "utf8"))?.[1] ?? 0);
    } catch {
      // It has ended, or is nobody's.
    }
  }
  return kilobytes / 1000;
}

/** The seconds that they have computed, with those of children that have ended. @param {number | undefined} root */
export function cpuSeconds(root) {
  let ticks = 0;
  for (const fields of family(root).values()) {
    for (const field of fields.slice(11, 15)) ticks += Number(field); // utime, stime, cutime, cstime
  }
  return ticks / TICKS;
}

/** What /proc/ID/stat has after the name, of each. @param {number | undefined} root */
function family(root) {
  /** @type {Map<number, string[]>} */
  const all = new Map();
  for (const id of readdirSync("/proc").filter((entry) => /^\d+$/.test(entry))) {
    try {
      const stat = readFileSync(`/proc/${id}/stat`, "utf8");
      all.set(Number(id), stat.slice(stat.lastIndexOf(")") + 2).split(" "));
    } catch {
      // It has ended.
    }
  }
  return new Map(
    [...all].filter(([process]) => {
      let id = process;
      while (id && id !== root) id = Number(all.get(id)?.[1] ?? 0);
      return id === root;
    }),
  );
}

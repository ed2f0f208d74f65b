// Processes and what they use. Linux.
import { readFileSync, readdirSync } from "node:fs";

/** @typedef {{ id: number, parent: number, started: string, name: string, ticks: number }} Process */

/** The kernel counts a second as so many ticks, everywhere. */
const TICKS = 100;

/** A process; undefined for one that has ended, or waits to be reaped. @param {number} id @returns {Process | undefined} */
export function findProcess(id) {
  try {
    const stat = readFileSync(`/proc/${id}/stat`, "utf8");
    const end = stat.lastIndexOf(")") + 1;
    const fields = stat.slice(end + 1).split(" ");
    if (fields[0] === "Z" || fields[0] === "X") return undefined;
    // utime, stime, cutime, cstime
    const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0);
    return { id, parent: Number(fields[1]), started: fields[19] ?? "", name: stat.slice(0, end), ticks };
  } catch {
    return undefined;
  }
}

/** A process and all of its descendants; it comes first. @param {number | undefined} root  its id */
export function family(root) {
  const ids = readdirSync("/proc").filter((entry) => /^\d+$/.test(entry));
  const all = ids.flatMap((id) => findProcess(Number(id)) ?? []);
  const found = all.filter(({ id }) => id === root);
  for (const { id } of found) found.push(...all.filter(({ parent }) => parent === id));
  return found;
}

/** The proportional set size of a process and its descendants: what they share counts once. @param {number | undefined} root  its id */
export function megabytes(root) {
  let kilobytes = 0;
  for (const { id } of family(root)) {
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
  return family(root).reduce((sum, { ticks }) => sum + ticks, 0) / TICKS;
}

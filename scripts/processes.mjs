// Processes, their memory and their processor time. Linux.
import { readFileSync, readdirSync } from "node:fs";

/** @typedef {{ id: number, parent: number, started: string, name: string, ticks: number }} Process */

/** The kernel's ticks per second, on every architecture. */
const TICKS = 100;

/** A process; undefined if it has ended or waits to be reaped. @param {number} id @returns {Process | undefined} */
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

/** A process, followed by all of its descendants. @param {number | undefined} root  the process's id */
export function family(root) {
  const ids = readdirSync("/proc").filter((entry) => /^\d+$/.test(entry));
  const all = ids.flatMap((id) => findProcess(Number(id)) ?? []);
  const found = all.filter(({ id }) => id === root);
  for (const { id } of found) found.push(...all.filter(({ parent }) => parent === id));
  return found;
}

/** The proportional set size (MB) of a process and its descendants; shared memory counts once. @param {number | undefined} root */
export function megabytes(root) {
  let kilobytes = 0;
  for (const { id } of family(root)) {
    try {
      kilobytes += Number(/^Pss: +(\d+)/m.exec(readFileSync(`/proc/${id}/smaps_rollup`, "utf8"))?.[1] ?? 0);
    } catch {
      // The process has ended meanwhile, or belongs to the kernel.
    }
  }
  return kilobytes / 1000;
}

/** The ids of all processes whose control group's path has one of these words. @param {string[]} words */
export function inGroups(words) {
  const ids = words.length > 0 ? readdirSync("/proc").filter((entry) => /^\d+$/.test(entry)) : [];
  return ids.map(Number).filter((id) => {
    try {
      const group = readFileSync(`/proc/${id}/cgroup`, "utf8");
      return words.some((word) => group.includes(word));
    } catch {
      return false; // it has ended meanwhile
    }
  });
}

/** The memory (MB) of processes that no file backs. It costs less to read than `megabytes`, which walks all pages. @param {number[]} ids */
export function ownMegabytes(ids) {
  let kilobytes = 0;
  for (const id of ids) {
    try {
      kilobytes += Number(/^RssAnon:\s+(\d+)/m.exec(readFileSync(`/proc/${id}/status`, "utf8"))?.[1] ?? 0);
    } catch {
      // The process has ended meanwhile.
    }
  }
  return kilobytes / 1000;
}

/** Processor seconds of a process and its descendants, ended children included. @param {number | undefined} root */
export function cpuSeconds(root) {
  return family(root).reduce((sum, { ticks }) => sum + ticks, 0) / TICKS;
}

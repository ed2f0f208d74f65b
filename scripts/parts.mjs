// The parts of others that the npm package carries, from the table of `LICENSES/README.md`.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "./project.mjs";

/** @typedef {{ name: string, version?: string, licence: string, licences: string[] }} Part  `licences` name its files in LICENSES/ */

/** @returns {Part[]} */
export function parts() {
  const text = readFileSync(join(root, "LICENSES/README.md"), "utf8");
  const rows = text.split("\n").filter((line) => /^\| (?!part |---)/.test(line));
  return rows.flatMap((row) => {
    const [names = "", , , licence = ""] = row
      .split("|")
      .slice(1, -1)
      .map((cell) => cell.trim());
    const licences = licence.split(/ with | or /).filter((name) => name !== "public domain");
    const all = names.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").split(", ");
    return all.map((part) => {
      const [, name = part, version] = /^(.*) (\d\S*)$/.exec(part) ?? [];
      return { name, ...(version ? { version } : {}), licence, licences };
    });
  });
}

// Imports between the modules of a crate. Cargo refuses circles of crates only. A module and its folder count as one here.
import { posix } from "node:path";

/** The source folders of the crates. */
const CRATES = [
  "src",
  "host/src",
  "crates/cli/src",
  "crates/core/src",
  "crates/jupyter/src",
  "crates/mcp/src",
  "crates/rlm/src",
  "crates/server/src",
  "crates/states/src",
];

/**
 * The imports of each module, both named with their crate's folder. Items of `lib.rs` may be used by all of a crate, and
 * tests may use all modules, so these do not count.
 * @param {string[]} files
 * @param {(file: string) => string} read
 * @returns {import("./layers.mjs").Imports}
 */
export function importsOfModules(files, read) {
  /** @type {Map<string, Set<string>>} */
  const found = new Map();
  for (const crate of CRATES) {
    const sources = files.filter((file) => file.startsWith(`${crate}/`) && file.endsWith(".rs"));
    const moduleOf = (/** @type {string} */ file) => posix.relative(crate, file).replace(/(\.rs|\/.*)$/, "");
    const modules = new Set(sources.map(moduleOf));
    for (const file of sources.filter((file) => !/(^|\/)tests(\.rs|\/)/.test(posix.relative(crate, file)))) {
      const from = moduleOf(file);
      if (from === "lib" || from === "main") continue;
      const text = read(file)
        .replace(/#\[cfg\(test\)\]\s*mod tests \{[\s\S]*/, "")
        .replaceAll(/\/\/.*/g, "");
      const isTop = posix.dirname(file) === crate;
      const imported = [...text.matchAll(isTop ? /\b(?:crate|super)::(\w+|\{[^;]*\})/g : /\bcrate::(\w+|\{[^;]*\})/g)]
        .flatMap(([, path]) => firstNames(path))
        .filter((name) => modules.has(name) && name !== from);
      const all = found.get(`${crate}/${from}`) ?? new Set();
      for (const name of imported) all.add(`${crate}/${name}`);
      found.set(`${crate}/${from}`, all);
    }
  }
  return new Map([...found].map(([module, imported]) => [module, [...imported].sort()]));
}

/** The modules that a path begins with, or each path within braces. @param {string} path */
function firstNames(path) {
  if (!path.startsWith("{")) return [path];
  let depth = 0;
  let flat = "";
  for (const char of path.slice(1, -1)) {
    if (char === "}") depth -= 1;
    if (depth === 0) flat += char;
    if (char === "{") depth += 1;
  }
  return [...flat.matchAll(/(?:^|,)\s*(\w+)/g)].map(([, name]) => name);
}

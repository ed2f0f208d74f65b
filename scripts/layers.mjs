// Rules of imports between files. A file's name is its path in the repository; `Imports` has the imported files of each file.
import { dirname, join } from "node:path";

/** @typedef {Map<string, string[]>} Imports */

/**
 * The imports of JavaScript files by relative addresses, imports of types in comments included.
 * @param {string[]} files
 * @param {(file: string) => string} read
 * @returns {Imports}
 */
export function importsOfScripts(files, read) {
  return new Map(
    files.map((file) => {
      const found = read(file).matchAll(/(?:\bfrom|\bimport)\s*\(?\s*"(\.\.?\/[^"]+)"/g);
      return [file, [...found].map(([, path]) => join(dirname(file), path))];
    }),
  );
}

/**
 * Imports that break the layers. A file may import from its own layer and from those below it. Files in no layer are
 * violations, too.
 * @param {Imports} imports
 * @param {string[][][]} stacks  Each stack is a list of layers from the top down, and a layer is a list of files. Stacks do not
 *   import from one another, but all may import from the last one.
 */
export function againstLayers(imports, stacks) {
  const place = new Map(
    stacks.flatMap((layers, stack) => layers.flatMap((files, layer) => files.map((file) => [file, { stack, layer }]))),
  );
  const base = stacks.length - 1;
  return [...imports].flatMap(([file, imported]) => {
    const from = place.get(file);
    if (!from) return [`${file} is in no layer`];
    return imported.flatMap((other) => {
      const to = place.get(other);
      const allowed = !to || (to.stack === from.stack ? to.layer >= from.layer : to.stack === base);
      return allowed ? [] : [`${file} imports ${other}`];
    });
  });
}

/** Circles of imports, each once. @param {Imports} imports */
export function circles(imports) {
  /** @type {string[]} */
  const found = [];
  const done = new Set();
  /** @type {string[]} */
  const path = [];
  const visit = (/** @type {string} */ file) => {
    const begin = path.indexOf(file);
    if (begin >= 0) found.push([...path.slice(begin), file].join(" → "));
    if (begin >= 0 || done.has(file)) return;
    path.push(file);
    for (const other of imports.get(file) ?? []) visit(other);
    path.pop();
    done.add(file);
  };
  for (const file of imports.keys()) visit(file);
  return found;
}

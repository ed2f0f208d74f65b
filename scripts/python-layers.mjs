// Rules of imports in the Python package. Its folders tell where code runs; code that runs everywhere imports from none of them.
import { posix } from "node:path";

export const PACKAGE = "pyodide-glue/python/sandglass";
/** The folders that a folder's modules may import from, besides their own. No path leads back. @type {Record<string, string[]>} */
const LAYERS = {
  runtime: [],
  state: ["runtime"],
  ahead: ["runtime"],
  browser: ["runtime", "state", "ahead"],
  native: ["runtime", "state", "ahead"],
  jupyter: ["runtime"],
  client: [],
  vendored: [],
};

/**
 * Imports that break the layers, imports within functions and for types only included. The files of the package itself
 * (`__init__.py`, `__main__.py`) may import what they start.
 * @param {string[]} files
 * @param {(file: string) => string} read
 */
export function pythonAgainstLayers(files, read) {
  return files
    .filter((file) => file.startsWith(`${PACKAGE}/`) && file.endsWith(".py"))
    .flatMap((file) => {
      const [folder, rest] = posix.relative(PACKAGE, file).split("/");
      if (rest === undefined) return folder.startsWith("__") ? [] : [`${file} is in no folder that says where it runs`];
      if (!(folder in LAYERS)) return [`${file} is in a folder that is no layer`];
      return read(file)
        .split("\n")
        .flatMap((line, index) => {
          const imported =
            line.match(/^\s*from sandglass(?:\.(\w+))?[\w.]* import/) ?? line.match(/^\s*import sandglass()/);
          const other = imported?.[1];
          const isAllowed = !imported || other === folder || (other && LAYERS[folder].includes(other));
          return isAllowed ? [] : [`${file}:${index + 1}: ${line.trim()}`];
        });
    });
}

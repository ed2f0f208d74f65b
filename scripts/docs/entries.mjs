// The entries of the npm package, each of which has a page in the reference.
import { readFileSync } from "node:fs";
import { join, posix } from "node:path";
import { root } from "../project.mjs";

const { name, exports } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));

/** `path`: of the page; `types`: of the file that declares the entry. @type {{ entry: string, path: string, types: string }[]} */
export const ENTRIES = Object.entries(exports).flatMap(([key, { types }]) =>
  types === undefined
    ? []
    : [
        {
          entry: posix.join(name, key),
          path: `reference/${posix.basename(posix.join(name, key))}.md`,
          types: posix.normalize(types),
        },
      ],
);

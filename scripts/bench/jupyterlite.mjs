// An optional rival of `npm run bench`: JupyterLite's Pyodide kernel, with all that it needs in
// .setup/bench/jupyterlite.
//   npm run bench -- --rivals jupyterlite     makes this folder if it is missing; later runs download nothing
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { mustRun, root } from "../project.mjs";

/** The kernel's npm package, and the versions of its JavaScript dependencies on a fixed day. */
const KERNEL = "@jupyterlite/pyodide-kernel@0.8.6";
const DAY = "2026-11-01";

/** Packages that the kernel's worker installs, and that neither its own package nor their dependents bring. */
const INSTALLED = ["micropip", "ipython", "jedi"];

/** Packages that Pyodide's lock file lacks. JupyterLite gets them from PyPI. */
const ADDED = { comm: { version: "0.2.3", imports: ["comm"] } };

const folder = join(root, ".setup/bench/jupyterlite");
const LOG = join(root, ".setup/logs/jupyterlite.log");
const pyodide = join(root, "node_modules/pyodide");

/**
 * Makes the folder if it is missing or of other versions: `kernel.js` (the class PyodideKernel), its worker, the
 * kernel's own wheels in pypi/, and in wheels/ Pyodide's lock file with the wheels from PyPI that the kernel installs.
 * Pyodide itself is the one of node_modules, as for Sandglass and its other rival.
 * @returns {Promise<string>} the folder
 */
export async function prepare() {
  const { version } = JSON.parse(readFileSync(join(pyodide, "package.json"), "utf8"));
  // The folder depends on this file and on Pyodide.
  const made = `Pyodide ${version}, ${sha256(fileURLToPath(import.meta.url))}`;
  const stamp = join(folder, "made.txt");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === made) return folder;

  rmSync(folder, { recursive: true, force: true });
  console.log(`Preparing ${KERNEL} for Pyodide ${version} …`);
  await kernel();
  await wheels();
  writeFileSync(stamp, made); // last, as a mark that the folder is complete
  return folder;
}

/** Copies the class, its worker and its wheels, as a page of JupyterLite has them. */
async function kernel() {
  const npm = join(folder, "npm");
  mkdirSync(npm, { recursive: true });
  writeFileSync(join(npm, "package.json"), "{}");
  const flags = ["--prefix", npm, "--before", DAY, "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund"];
  await mustRun(["npm", "install", ...flags, KERNEL], { log: LOG, cwd: npm, hint: "is the npm registry in reach?" });

  const lib = join(npm, "node_modules", KERNEL.slice(0, KERNEL.lastIndexOf("@")), "lib");
  await build({
    stdin: { contents: `export * from "./kernel.js"; export * from "./_pypi.js";`, resolveDir: lib },
    outfile: join(folder, "kernel.js"),
    bundle: true,
    minify: true,
    format: "esm",
    logLevel: "warning",
    // The package only imports the addresses of these.
    loader: { ".json": "file", ".whl": "file" },
    assetNames: "pypi/[name]",
    // As on a site that is not isolated. The kernel's way through shared memory, on isolated pages, sometimes fails
    // with "value.then is not a function", when the worker has answered before the page waits (coincident 1.2.3).
    define: { crossOriginIsolated: "false" },
  });
  cpSync(join(lib, "comlink.worker.js"), join(folder, "comlink.worker.js"));
  rmSync(npm, { recursive: true });
}

/** Makes Pyodide's lock file, with PyPI's wheels of the same versions for the packages that the kernel installs. */
async function wheels() {
  const lock = JSON.parse(readFileSync(join(pyodide, "pyodide-lock.json"), "utf8"));
  for (const [name, { version, imports }] of Object.entries(ADDED)) {
    lock.packages[name] = { name, version, imports, depends: [], install_dir: "site", package_type: "package" };
  }
  const needed = new Set([...INSTALLED, ...Object.keys(ADDED)]);
  for (const name of needed) {
    for (const other of lock.packages[name].depends) needed.add(normalized(other));
  }

  const place = join(folder, "wheels");
  const python = lock.info.python.split(".").slice(0, 2).join(".");
  const flags = ["--quiet", "--no-deps", "--only-binary=:all:", "--platform=any", `--python-version=${python}`];
  const pins = [...needed].map((name) => `${name}==${lock.packages[name].version}`);
  await mustRun(["python3", "-m", "pip", "download", ...flags, "--dest", place, ...pins], {
    log: LOG,
    hint: "is PyPI in reach?",
  });
  for (const file of readdirSync(place)) {
    const entry = lock.packages[normalized(file.slice(0, file.indexOf("-")))];
    entry.file_name = file;
    entry.sha256 = sha256(join(place, file));
  }
  writeFileSync(join(place, "pyodide-lock.json"), JSON.stringify(lock));
}

/** @param {string} file */
function sha256(file) {
  return createHash("sha256").update(readFileSync(file)).digest("hex");
}

/** @param {string} name of a Python package */
function normalized(name) {
  return name.toLowerCase().replace(/[-_.]+/g, "-");
}

// Fetches the contestants, and says which cannot take part here, and why.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { mustRun, root, run } from "../../project.mjs";
import { findImage } from "./containers.mjs";
import { DENO_CACHE, RIVALS } from "./contestants.mjs";

const logOf = (/** @type {string} */ name) => join(root, ".setup/logs", `bench-rlm-${name}.log`);

/**
 * Returns those of the contestants that can take part, and what readers should know of the others and of replacements.
 * @param {string[]} wanted
 */
export async function prepare(wanted) {
  // An older program may be there, which lacks options.
  if (!process.env.SANDGLASS_HOST && wanted.some((name) => name.startsWith("sandglass-host"))) {
    await mustRun(["cargo", "build", "--release", "-p", "sandglass-cli"], {
      log: logOf("build"),
      timeoutSeconds: 3600,
    });
  }
  const inPython = wanted.filter((name) => !name.startsWith("sandglass"));
  if (inPython.length > 0) {
    const python = join(RIVALS, "bin/python");
    if (!existsSync(python)) await mustRun(["python3", "-m", "venv", RIVALS], { log: logOf("venv") });
    await mustRun([python, "-m", "pip", "install", "-q", "-r", "scripts/bench/rlm/rivals.txt"], { log: logOf("pip") });
  }
  /** @type {string[]} */
  const [here, notes] = [[], []];
  for (const name of wanted) {
    const { problem, note } = name === "dspy" ? await dspy() : name === "rlms-docker" ? await docker() : {};
    if (note) notes.push(note);
    if (problem) notes.push(`\`${name}\` does not take part: ${problem}.`);
    else here.push(name);
  }
  for (const note of notes) console.log(note);
  return { here, notes };
}

/** @typedef {{ problem?: string, note?: string }} Found */

/** @returns {Promise<Found>} */
async function docker() {
  const found = await findImage(join(RIVALS, "bin/python"));
  if ("problem" in found) return found;
  if (found.image.startsWith("python:")) return {};
  process.env.RLMS_IMAGE = found.image;
  return {
    note: "`rlms` in Docker: no registry was in reach, so the container has Debian's Python 3.11 with the packages that `rlms` asks for.",
  };
}

/** Downloads what DSPy's interpreter imports. One import is replaced by ours where its host cannot be reached. @returns {Promise<Found>} */
async function dspy() {
  const deno = join(RIVALS, "bin/deno");
  const find = "import importlib.util as u; print(u.find_spec('dspy').submodule_search_locations[0])";
  const folder = execFileSync(join(RIVALS, "bin/python"), ["-c", find], { encoding: "utf8" }).trim();
  const download = (/** @type {string[]} */ ...options) => {
    const flags = ["--no-config", "--no-lock", "--node-modules-dir=false", ...options];
    const how = { log: logOf("deno"), timeoutSeconds: 120, env: { DENO_DIR: DENO_CACHE } };
    return run([deno, "cache", ...flags, join(folder, "primitives/runner.js")], how);
  };
  if ((await download()).ok) return {};
  const lines = pathToFileURL(join(root, "scripts/bench/rlm/deno-lines.js")).href;
  const map = join(DENO_CACHE, "imports.json");
  mkdirSync(DENO_CACHE, { recursive: true });
  writeFileSync(map, JSON.stringify({ imports: { "https://deno.land/std@0.186.0/io/mod.ts": lines } }));
  if (!(await download(`--import-map=${map}`)).ok)
    return { problem: "what its interpreter imports cannot be downloaded" };
  process.env.DSPY_IMPORTS = map;
  return {
    note: "`dspy`: the host of one import of its interpreter was not in reach, so that import is a file of this benchmark.",
  };
}

// Fetches the contestants, and says which cannot take part here, and why.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { mustRun, root, run } from "../../project.mjs";
import { findImage } from "./containers.mjs";
import { DENO_CACHE, RIVALS } from "./contestants.mjs";

/** The release build without optimisations, in a folder of its own. */
const UNOPTIMISED = {
  CARGO_TARGET_DIR: join(root, "target/quick"),
  ...{
    CARGO_PROFILE_RELEASE_OPT_LEVEL: "0",
    CARGO_PROFILE_RELEASE_LTO: "off",
    CARGO_PROFILE_RELEASE_CODEGEN_UNITS: "16",
  },
};

const logOf = (/** @type {string} */ name) => join(root, ".setup/logs", `bench-rlm-${name}.log`);

/**
 * Returns those of the contestants that can take part, and what readers should know of the others and of replacements.
 * @param {string[]} wanted @param {boolean} quick  builds the program in less than half of the time, without optimisations
 */
export async function prepare(wanted, quick) {
  /** @type {string[]} */
  const [here, notes] = [[], []];
  const isInPython = (/** @type {string} */ name) => !name.startsWith("sandglass");
  const needs = (/** @type {string} */ kind) => wanted.some((name) => name.startsWith(kind));
  // Each of them waits much, for downloads or for a step that one processor takes.
  const [noPython] = await Promise.all([
    wanted.some(isInPython) ? installRivals() : undefined,
    needs("sandglass-browser") && mustRun(["node", "scripts/build.mjs"], { log: logOf("page") }),
    needs("sandglass-host") && buildProgram(quick, notes),
  ]);
  const noGuests = needs("sandglass-host") ? await findGuests() : undefined;
  for (const name of wanted) {
    const { problem, note } = await findOne(name, isInPython(name) ? noPython : noGuests);
    if (note) notes.push(note);
    if (problem) notes.push(`\`${name}\` does not take part: ${problem}.`);
    else here.push(name);
  }
  for (const note of notes) console.log(note);
  return { here, notes };
}

/** Builds the program, unless another is named: an older one may be there, which lacks options. @param {boolean} quick @param {string[]} notes */
async function buildProgram(quick, notes) {
  if (process.env.SANDGLASS_HOST) return;
  await mustRun(["cargo", "build", "--release", "-p", "sandglass-cli"], {
    ...{ log: logOf("build"), timeoutSeconds: 3600 },
    env: quick ? UNOPTIMISED : { CARGO_TARGET_DIR: join(root, "target") },
  });
  if (!quick) return;
  process.env.SANDGLASS_HOST = join(UNOPTIMISED.CARGO_TARGET_DIR, "release/sandglass-host");
  notes.push("`sandglass-host` was built without optimisations, because that takes less time.");
}

/** @typedef {{ problem?: string, note?: string }} Found */

/** @param {string} name @param {string | undefined} problem  the reason for which none of its kind can take part @returns {Promise<Found>} */
async function findOne(name, problem) {
  if (name.startsWith("sandglass-browser")) return {};
  if (problem) return { problem };
  return name === "dspy" ? dspy() : name === "rlms-docker" ? docker() : {};
}

/** Installs the contestants in Python. Returns the reason if that fails. */
async function installRivals() {
  const python = join(RIVALS, "bin/python");
  const requirements = ["-r", "scripts/bench/rlm/rivals.txt"];
  try {
    if (!existsSync(python)) await mustRun(["python3", "-m", "venv", "--clear", RIVALS], { log: logOf("venv") });
    await mustRun([python, "-m", "pip", "install", "-q", ...requirements], { log: logOf("pip") });
  } catch (error) {
    const advice = "on Debian and Ubuntu, apt-get install python3-venv may help";
    return `its packages could not be installed (${/** @type {Error} */ (error).message.split("\n")[0]}); ${advice}`;
  }
}

/** Looks whether guests of the host start here. Returns the reason if they do not. */
async function findGuests() {
  const program = process.env.SANDGLASS_HOST ?? join(root, "target/release/sandglass-host");
  const { ok, output } = await run([program, "doctor", "--backend", "bubblewrap"], { log: logOf("doctor") });
  return ok ? undefined : `its guests do not start here: ${output.trim().split("\n")[0]}`;
}

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

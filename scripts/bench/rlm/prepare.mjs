// Fetches the contestants, and says which cannot take part here, and why.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { mustRun, root, run } from "../../project.mjs";
import { DSPY_PARTS, RIVALS } from "./contestants.mjs";

const logOf = (/** @type {string} */ name) => join(root, ".setup/logs", `bench-rlm-${name}.log`);
/** The version of Pyodide that DSPy's runner imports. */
const DSPY_PYODIDE = "0.29.4";
/** The image of rlms' container, by its own default. */
const RLMS_IMAGE = "python:3.11-slim";

/** Returns those of the contestants that can take part. @param {string[]} wanted */
export async function prepare(wanted) {
  const ours = process.env.SANDGLASS_HOST ?? join(root, "target/release/sandglass-host");
  if (wanted.includes("sandglass-host") && !existsSync(ours)) {
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
  const here = [];
  for (const name of wanted) {
    const problem = name === "dspy" ? await dspy() : name === "rlms-docker" ? docker() : undefined;
    if (problem) console.log(`${name} does not take part: ${problem}`);
    else here.push(name);
  }
  return here;
}

/** Downloads what DSPy's interpreter needs. Where the host of its own imports cannot be reached, parts of npm take their place. */
async function dspy() {
  const deno = join(RIVALS, "bin/deno");
  const runner = execFileSync(join(RIVALS, "bin/python"), [
    ...["-c", "import importlib.util as u; print(u.find_spec('dspy').submodule_search_locations[0])"],
  ]);
  const script = join(runner.toString().trim(), "primitives/runner.js");
  const cache = [deno, "cache", "--no-config", "--no-lock", "--node-modules-dir=false", script];
  const downloaded = await run(cache, {
    log: logOf("deno"),
    timeoutSeconds: 60,
    env: { DENO_DIR: join(root, ".setup/rlm-deno") },
  });
  if (downloaded.ok) return undefined;
  mkdirSync(DSPY_PARTS, { recursive: true });
  const pyodide = join(DSPY_PARTS, "node_modules/pyodide/pyodide.js");
  if (!existsSync(pyodide)) {
    const install = ["npm", "install", "--prefix", DSPY_PARTS, "--no-save", "--silent", `pyodide@${DSPY_PYODIDE}`];
    const installed = await run(install, { log: logOf("dspy"), cwd: DSPY_PARTS });
    if (!installed.ok) return "Pyodide cannot be downloaded for its interpreter";
  }
  const imports = {
    [`npm:pyodide@${DSPY_PYODIDE}/pyodide.js`]: pathToFileURL(pyodide).href,
    "https://deno.land/std@0.186.0/io/mod.ts": pathToFileURL(join(root, "scripts/bench/rlm/deno-lines.js")).href,
  };
  writeFileSync(join(DSPY_PARTS, "imports.json"), JSON.stringify({ imports }));
  process.env.DSPY_PARTS = DSPY_PARTS;
  return undefined;
}

/** The reason for which containers cannot be had. */
function docker() {
  try {
    execFileSync("docker", ["image", "inspect", RLMS_IMAGE], { stdio: "ignore" });
    return undefined;
  } catch {
    return `there is no Docker engine here with the image ${RLMS_IMAGE}`;
  }
}

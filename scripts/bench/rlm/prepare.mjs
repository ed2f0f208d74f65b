// Fetches the contestants, and says which cannot take part here, and why.
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { mustRun, root, run } from "../../project.mjs";
import { DENO_CACHE, RIVALS } from "./contestants.mjs";

const logOf = (/** @type {string} */ name) => join(root, ".setup/logs", `bench-rlm-${name}.log`);
/** The image of rlms' container, by its own default. */
const RLMS_IMAGE = "python:3.11-slim";
/** What host/image/debian-base.sh makes of Debian's packages, and the image for rlms that is made of it. */
const BASE_IMAGE = "sandglass-base";
const OWN_IMAGE = "sandglass-bench-rlms";

/** Returns those of the contestants that can take part. @param {string[]} wanted */
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
  const here = [];
  for (const name of wanted) {
    const problem = name === "dspy" ? await dspy() : name === "rlms-docker" ? await docker() : undefined;
    if (problem) console.log(`${name} does not take part: ${problem}`);
    else here.push(name);
  }
  return here;
}

/** Downloads what DSPy's interpreter imports. A part of its own host is replaced by ours where that host cannot be reached. */
async function dspy() {
  const deno = join(RIVALS, "bin/deno");
  const find = "import importlib.util as u; print(u.find_spec('dspy').submodule_search_locations[0])";
  const folder = execFileSync(join(RIVALS, "bin/python"), ["-c", find], { encoding: "utf8" }).trim();
  const download = (/** @type {string[]} */ ...options) => {
    const flags = ["--no-config", "--no-lock", "--node-modules-dir=false", ...options];
    const how = { log: logOf("deno"), timeoutSeconds: 120, env: { DENO_DIR: DENO_CACHE } };
    return run([deno, "cache", ...flags, join(folder, "primitives/runner.js")], how);
  };
  if ((await download()).ok) return undefined;
  const lines = pathToFileURL(join(root, "scripts/bench/rlm/deno-lines.js")).href;
  const map = join(DENO_CACHE, "imports.json");
  mkdirSync(DENO_CACHE, { recursive: true });
  writeFileSync(map, JSON.stringify({ imports: { "https://deno.land/std@0.186.0/io/mod.ts": lines } }));
  if (!(await download(`--import-map=${map}`)).ok) return "what its interpreter imports cannot be downloaded";
  process.env.DSPY_IMPORTS = map;
  return undefined;
}

/** Sees to the image of the container. Returns the reason why it cannot be had. */
async function docker() {
  if (hasImage(RLMS_IMAGE)) return undefined;
  // Without a registry: Debian's Python with the two packages that rlms asks for in any other image.
  if (!hasImage(BASE_IMAGE)) return `there is no Docker engine here with the image ${RLMS_IMAGE} or ${BASE_IMAGE}`;
  const packages = mkdtempSync(join(tmpdir(), "bench-rlm-image-"));
  const pip = [join(RIVALS, "bin/python"), "-m", "pip", "install", "-q", "--target", packages, "dill", "requests"];
  const docker = (/** @type {string[]} */ ...args) => execFileSync("docker", args, { encoding: "utf8" }).trim();
  const link = "ln -sf /usr/bin/python3 /usr/local/bin/python && cp -r /tmp/packages/. /usr/lib/python3/dist-packages/";
  let container = "";
  try {
    await mustRun(pip, { log: logOf("image"), timeoutSeconds: 120 });
    container = docker("run", "-d", BASE_IMAGE, "sleep", "300");
    docker("cp", packages, `${container}:/tmp/packages`);
    docker("exec", container, "sh", "-c", link);
    docker("commit", container, OWN_IMAGE);
  } catch (error) {
    return `its image could not be made: ${/** @type {Error} */ (error).message}`;
  } finally {
    if (container) docker("rm", "-f", container);
    rmSync(packages, { recursive: true, force: true });
  }
  process.env.RLMS_IMAGE = OWN_IMAGE;
  return undefined;
}

/** @param {string} name */
function hasImage(name) {
  try {
    execFileSync("docker", ["image", "inspect", name], { stdio: "ignore" });
    return true;
  } catch {
    return false;
  }
}

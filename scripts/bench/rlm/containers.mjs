// The container of `rlms` in Docker: its image, and its end.
import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { mustRun, root } from "../../project.mjs";

/** The image of rlms' own default. */
const USUAL = "python:3.11-slim";
/** What host/image/debian-base.sh makes of Debian's packages, and the image for rlms that is made of it. */
const BASE = "sandglass-base";
const OWN = "sandglass-bench-rlms";
const PULL_SECONDS = 120;

const docker = (/** @type {string[]} */ ...args) =>
  execFileSync("docker", args, { encoding: "utf8", stdio: "pipe" }).trim();

/**
 * Sees to the image. Returns its name, or the reason why there is none.
 * @param {string} python  with pip
 * @returns {Promise<{ image: string } | { problem: string }>}
 */
export async function findImage(python) {
  if (has(USUAL)) return { image: USUAL };
  try {
    execFileSync("docker", ["pull", USUAL], { stdio: "ignore", timeout: PULL_SECONDS * 1000 });
    return { image: USUAL };
  } catch {
    // no engine, or no registry in reach
  }
  if (has(OWN)) return { image: OWN };
  if (!has(BASE)) return { problem: `there is no Docker engine here with the image ${USUAL} or ${BASE}` };
  // Debian's Python with the two packages that rlms asks for in any image but its own.
  const packages = mkdtempSync(join(tmpdir(), "bench-rlm-image-"));
  let container = "";
  try {
    const log = join(root, ".setup/logs/bench-rlm-image.log");
    const pip = [python, "-m", "pip", "install", "-q", "--target", packages, "dill", "requests"];
    await mustRun(pip, { log, timeoutSeconds: 120 });
    container = docker("run", "-d", BASE, "sleep", "300");
    docker("cp", packages, `${container}:/tmp/packages`);
    const link =
      "ln -sf /usr/bin/python3 /usr/local/bin/python && cp -r /tmp/packages/. /usr/lib/python3/dist-packages/";
    docker("exec", container, "sh", "-c", link);
    docker("commit", container, OWN);
    return { image: OWN };
  } catch (error) {
    return { problem: `its image could not be made: ${/** @type {Error} */ (error).message}` };
  } finally {
    if (container) docker("rm", "-f", container);
    rmSync(packages, { recursive: true, force: true });
  }
}

/** The ids of the containers that run now. @returns {Promise<string[]>} */
export async function findContainers() {
  const command = ["ps", "-q", "--no-trunc", "--filter", `ancestor=${process.env.RLMS_IMAGE ?? USUAL}`];
  return promisify(execFile)("docker", command)
    .then(({ stdout }) => stdout.split("\n").filter(Boolean))
    .catch(() => []);
}

/** Removes containers that a controller has left, and returns their number. */
export function endContainers() {
  const image = process.env.RLMS_IMAGE ?? USUAL;
  try {
    const left = docker("ps", "-aq", "--filter", `ancestor=${image}`).split("\n").filter(Boolean);
    if (left.length > 0) docker("rm", "-f", ...left);
    return left.length;
  } catch {
    return 0; // the engine has ended
  }
}

/** @param {string} name */
function has(name) {
  try {
    docker("image", "inspect", name);
    return true;
  } catch {
    return false;
  }
}

// Starts replays of the recorded sessions over DataFrames of tests/sessions/dataframes/. They run in guests in
// bubblewrap, with pandas and similar packages, and with packages that carry the data. Linux.
import { spawn } from "node:child_process";
import { copyFileSync, existsSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { mustRun, root } from "../project.mjs";

const recordings = join(root, "tests/sessions/dataframes");
const requirements = join(root, "scripts/bench/dataframes.txt");
const venv = join(root, ".setup/dataframes");
const log = join(root, ".setup/logs/bench-dataframes.log");

/**
 * @typedef {object} Session
 * @property {string} name
 * @property {"tuning" | "reporting"} purpose
 * @property {"agent" | "notebook"} style
 * @property {{ reply: string, code: string, outcome: string, durationMs: number }[]} turns
 */

/** The recordings, sorted by name. @returns {Session[]} */
export const sessions = () =>
  readdirSync(recordings).map((file) => JSON.parse(readFileSync(join(recordings, file), "utf8")));

/** The packages that the sessions need, as `name==version`. */
export const packages = () => readFileSync(requirements, "utf8").split("\n");

/** Starts a program that replays sessions, after installing the packages that they import. */
export async function start() {
  await install();
  await mustRun(["cargo", "build", "-p", "sandglass-host", "--example", "replay"], { log });
  const program = join(root, "target/debug/examples/replay");
  const child = spawn(program, [join(venv, "bin/python3")], { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    id: child.pid,
    /** @param {object} order  see host/examples/replay.rs */
    async replay(order) {
      child.stdin.write(`${JSON.stringify(order)}\n`);
      const { value, done } = await lines.next();
      if (done) throw new Error(`${program} ended`);
      const replayed = JSON.parse(value);
      if (replayed.error) throw new Error(replayed.error);
      return replayed;
    },
    close: () => void child.stdin.end(),
  };
}

/** The system's own Python, which guests can read. Others may be in folders that guests cannot read. It may have no pip. */
async function install() {
  const installed = join(venv, "requirements.txt");
  if (existsSync(installed) && readFileSync(installed, "utf8") === readFileSync(requirements, "utf8")) return;
  console.log("Installing pandas, scikit-learn and statsmodels …");
  rmSync(venv, { recursive: true, force: true });
  await mustRun(["/usr/bin/python3", "-m", "venv", "--without-pip", venv], { log });
  const pip = [join(root, ".venv/bin/python"), "-m", "pip", "--python", join(venv, "bin/python3")];
  await mustRun([...pip, "install", "--quiet", "--disable-pip-version-check", "--requirement", requirements], { log });
  copyFileSync(requirements, installed); // last, as a mark that all packages are installed
}

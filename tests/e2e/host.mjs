// A `sandglass-host` server for tests, as `npm test` builds it.
import { spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { root } from "../../scripts/project.mjs";

const START_SECONDS = 60;
const END_SECONDS = 60;

/** The program's path. `cargo build -p sandglass-cli` makes the program; SANDGLASS_HOST names another one. */
export const program =
  process.env.SANDGLASS_HOST ?? join(process.env.CARGO_TARGET_DIR ?? join(root, "target"), "debug/sandglass-host");

/** The image of guests on Docker, made by scripts/setup. */
const TEST_IMAGE = "sandglass-base";

/** A key that the server knows. Its user has a name. */
export const KEY = "a-key-for-tests-0123456789";

/**
 * Starts a server that pages of `origin` may use.
 * @param {{ backend: string, origin: string, port?: number, settings?: string[], keys?: string }} options  port 0 takes a free one
 */
export async function startHost({ backend, origin, port = 0, settings = [], keys = `tester ${KEY}` }) {
  if (!existsSync(program)) throw new Error(`there is no ${program}: cargo build -p sandglass-cli`);
  const args = ["serve", "--listen", `127.0.0.1:${port}`, "--backend", backend, "--allow-origin", origin];
  if (backend === "subprocess") args.push("--allow-subprocess");
  if (backend === "jupyter") args.push("--python", join(root, ".setup/jupyter/7/bin/python"));
  const child = spawn(program, [...args, ...settings], {
    env: { REPL_DOCKER_IMAGE: TEST_IMAGE, ...process.env, SANDGLASS_KEYS: keys, NO_COLOR: "1" },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  const ended = new Promise((resolve) => child.once("close", (code, signal) => resolve(code ?? signal)));
  child.once("error", (error) => (said += `${error}\n`));
  const url = await new Promise((resolve, reject) => {
    const fail = (/** @type {string} */ why) => {
      child.kill("SIGKILL");
      reject(new Error(`sandglass-host ${why} (scripts/setup sees to what a backend needs):\n${said.slice(-4000)}`));
    };
    const timer = setTimeout(() => fail(`did not start within ${START_SECONDS} s`), START_SECONDS * 1000);
    ended.then((code) => fail(`ended with ${code}`));
    const hear = (/** @type {string} */ text) => {
      said = (said + text).slice(-100_000);
      if (process.env.VERBOSE) process.stdout.write(text);
      const address = /https?:\/\/127\.0\.0\.1:[1-9]\d*/.exec(said);
      if (!address) return;
      clearTimeout(timer);
      resolve(address[0]);
    };
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", hear);
  });
  return {
    url: /** @type {string} */ (url),
    pid: /** @type {number} */ (child.pid),
    said: () => said,
    /** Stops the server's process. Resolves when all its threads stand still, because a signal reaches one after the other. */
    async pause() {
      child.kill("SIGSTOP");
      while (!threadStates(child.pid).every((state) => state === "T")) await pause(5);
    },
    goOn: () => void child.kill("SIGCONT"),
    /** Ends the server. Resolves to its exit code, or to the signal that ended it. @param {NodeJS.Signals} [signal] */
    async stop(signal = "SIGTERM") {
      child.kill(signal);
      const timer = setTimeout(() => child.kill("SIGKILL"), END_SECONDS * 1000);
      const code = await ended;
      clearTimeout(timer);
      return code;
    },
  };
}

/** The state of each thread of a process, in the kernel's letters. @param {number | undefined} pid */
function threadStates(pid) {
  const tasks = `/proc/${pid}/task`;
  return readdirSync(tasks).map((task) => {
    try {
      // The process's name is in brackets and may hold any characters.
      return readFileSync(join(tasks, task, "stat"), "utf8")
        .split(") ")
        .at(-1)?.[0];
    } catch {
      return "ended";
    }
  });
}

// The repository's folder, and helpers that run other programs.
import { spawn } from "node:child_process";
import { createWriteStream, mkdirSync } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** The repository's folder. */
export const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** The environment of every program that a script runs: tools chosen by scripts/setup come first on PATH. */
export const environment = {
  ...process.env,
  PATH: [join(root, ".setup/bin"), join(root, "node_modules/.bin"), process.env.PATH].join(delimiter),
};

/**
 * Runs a program as `run` does; throws an error with its output if it fails.
 * @param {string[]} command
 * @param {Parameters<typeof run>[1] & { hint?: string }} options  `hint`: a likely cause of a failure
 */
export async function mustRun(command, { hint, ...options }) {
  const { ok, output } = await run(command, options);
  const name = command.slice(0, 6).join(" ");
  if (!ok) throw new Error(`${name} failed${hint ? ` (${hint})` : ""}:\n${output.slice(-3000)}`);
}

/**
 * Runs a program in its own process group and streams its output into a file.
 * @param {string[]} command
 * @param {{ log: string, cwd?: string, timeoutSeconds?: number, env?: Record<string, string> }} options
 * @returns {Promise<{ ok: boolean, output: string }>} `output` ends with the reason if the program could not run or took too long
 */
export function run([program, ...args], { log, cwd = root, timeoutSeconds = 1200, env = {} }) {
  mkdirSync(dirname(log), { recursive: true });
  const file = createWriteStream(log);
  return new Promise((resolve) => {
    let output = "";
    const write = (/** @type {string} */ text) => {
      output += text;
      file.write(text);
    };
    const child = spawn(program, args, {
      cwd,
      env: { ...environment, ...env },
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,
    });
    const killGroup = () => {
      try {
        process.kill(-(/** @type {number} */ (child.pid)), "SIGKILL");
      } catch {
        // the process has ended already
      }
    };
    // Ctrl-C does not reach another process group by itself. The exit is delayed, so that
    // all other listeners run first and end their programs.
    const interrupted = () => {
      killGroup();
      setImmediate(() => process.exit(130));
    };
    process.once("SIGINT", interrupted);
    const timer = setTimeout(() => {
      write(`\nstopped: it ran for more than ${timeoutSeconds} s\n`);
      killGroup();
    }, timeoutSeconds * 1000);
    const end = (/** @type {boolean} */ ok) => {
      clearTimeout(timer);
      process.off("SIGINT", interrupted);
      file.end(() => resolve({ ok, output }));
    };
    child.stdout.setEncoding("utf8").on("data", write);
    child.stderr.setEncoding("utf8").on("data", write);
    child.once("error", (error) => {
      write(`${program} could not start: ${error.message}\n`);
      end(false);
    });
    child.once("close", (code) => end(code === 0));
  });
}

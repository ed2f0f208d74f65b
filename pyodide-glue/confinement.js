// The command that starts a guest's process, and the wall around it: bubblewrap where it works, else Deno's permissions.
// Decisions: docs/internals/guest-in-a-process.md.

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, delimiter, dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startProcess, startProgram } from "./process.js";
import { SandboxError } from "./sandbox-error.js";
import { filterFor } from "./seccomp.js";

/** @typedef {import("./process.js").Command} Command */
/** A program that can run a guest. @typedef {{ kind: "node" | "deno", path: string }} Engine */

const run = promisify(execFile);
/** The time for a trial run, in milliseconds. */
const TRIAL_MS = 30_000;
/** The script of a guest's process. Found when it is needed, because a bundle may not know its own address. */
function ownScript() {
  const path = fileURLToPath(new URL("../dist/process.mjs", import.meta.url));
  if (existsSync(path)) return path;
  const remedy = "If your program is bundled, leave the package sandglass out of the bundle (external)";
  throw new SandboxError("asset_failed", `${path} is not there, so no guest was started. ${remedy}`);
}
/** The first version of Node.js that calls its permissions by their final name. */
const [PERMISSIONS_MAJOR, PERMISSIONS_MINOR] = [22, 13];
/** The paths of the engine and its script in bubblewrap. */
const [INSIDE_ENGINE, INSIDE_SCRIPT] = ["/guest/engine", "/guest/process.mjs"];
const NO_EVAL = "--disallow-code-generation-from-strings";
const MISSING = `nothing here can confine Python's process, so none was started. Install one of these:
- Deno, as \`npm install deno\` does
- on Linux, bubblewrap (\`apt install bubblewrap\`), in a system that allows user namespaces
Or pass isolation: "none", if you trust all code that runs: it will have all rights of yours.`;

/** Makes the supervisor's way to processes of guests. */
export function createProcesses() {
  /** @type {Promise<void> | undefined} */
  let preparing;
  /** @type {Command | undefined} */
  let confined;
  const processes = {
    /** The name of what confines a process here. @type {string | undefined} */
    confinement: undefined,

    /** Finds what confines a process here. A failure is forgotten, because something may be installed meanwhile. */
    prepare() {
      preparing ??= confine().then(
        ({ name, command }) => {
          confined = command;
          processes.confinement = name;
        },
        (error) => {
          preparing = undefined;
          throw error;
        },
      );
      return preparing;
    },

    /** @param {boolean} isConfined @param {ArrayBuffer} script @param {MessagePort} port @param {MessagePort} control */
    start(isConfined, script, port, control) {
      const command = isConfined ? confined : unconfined();
      if (!command) throw new Error("it is not known yet what confines a process here");
      return startProcess(command, script, port, control);
    },
  };
  return processes;
}

/**
 * The command that starts a confined process, and the name of its wall. Rejects when there is no wall here.
 * @param {string} [script]  what the process runs
 * @returns {Promise<{ name: string, command: Command }>}
 */
export async function confine(script = ownScript()) {
  const failures = [];
  for (const way of [inBubblewrap, inDeno]) {
    try {
      const command = await way(script);
      if (command) return { name: way === inDeno ? "deno" : "bubblewrap", command };
    } catch (error) {
      const { message, stderr } = /** @type {Error & { stderr?: string }} */ (error);
      failures.push((stderr || message).trim().slice(0, 500));
    }
  }
  throw new Error([MISSING, ...failures].join("\n"));
}

/** The process without a wall. @returns {Command} */
function unconfined() {
  const { kind, path } = findEngine();
  return {
    program: path,
    args: kind === "deno" ? ["run", "--quiet", "--allow-all", ownScript()] : [ownScript()],
    env: surroundings(),
  };
}

/** The program that runs this code, unless it is Bun: its engine does not take Pyodide's wasm. @returns {Engine} */
function findEngine() {
  if ("Deno" in globalThis) return { kind: "deno", path: process.execPath };
  if (!("Bun" in globalThis)) return { kind: "node", path: process.execPath };
  const [node, deno] = [which("node"), findDeno()];
  if (node) return { kind: "node", path: node };
  if (deno) return { kind: "deno", path: deno };
  throw new Error("Bun's engine cannot run Python: install Node.js or Deno beside it");
}

/**
 * The arguments that run a script. Where an engine has permissions of its own, the guest gets none.
 * @param {"node" | "deno"} kind @param {string} version  as the engine tells it @param {string} script
 */
function argumentsOf(kind, version, script) {
  if (kind === "deno") {
    const nothing = ["--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm"];
    return ["run", "--quiet", ...nothing, `--v8-flags=${NO_EVAL}`, script];
  }
  const [major, minor] = version.replace("v", "").split(".").map(Number);
  const isNamed = major > PERMISSIONS_MAJOR || (major === PERMISSIONS_MAJOR && minor >= PERMISSIONS_MINOR);
  const permissions = isNamed && !(major === 23 && minor < 5) ? "--permission" : "--experimental-permission";
  return ["--no-warnings", NO_EVAL, permissions, "--allow-worker", `--allow-fs-read=${script}`, script];
}

/** The variables by which Deno finds its cache. No other program needs any. */
function surroundings() {
  const names = ["HOME", "DENO_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE", "SystemRoot"];
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

/** Finds a program. @param {string} name */
function which(name) {
  const file = process.platform === "win32" ? `${name}.exe` : name;
  /** @type {string[]} */
  const folders = (process.env.PATH ?? "").split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, file)).find((path) => existsSync(path));
}

/** @param {string} script @returns {Promise<Command | undefined>} */
async function inBubblewrap(script) {
  const bwrap = process.platform === "linux" && which("bwrap");
  if (!bwrap) return undefined;
  const { kind, path } = findEngine();
  const filter = filterFor(process.arch);
  const around = [
    ...["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"],
    ...["--new-session", "--die-with-parent", "--hostname", "sandglass", "--clearenv"],
    ...(await librariesOf(path)).flatMap((library) => ["--ro-bind", library, library]),
    // Not the path itself: Deno rewrites the arguments of a program that gets it.
    ...["--ro-bind", `${dirname(path)}/./${basename(path)}`, INSIDE_ENGINE, "--ro-bind", script, INSIDE_SCRIPT],
    // Debian's Node.js has a part of its own library there.
    ...(kind === "node" ? ["--ro-bind-try", "/usr/share/nodejs", "/usr/share/nodejs"] : []),
    ...(kind === "deno" ? ["--size", `${1 << 20}`, "--tmpfs", "/tmp", "--setenv", "DENO_DIR", "/tmp"] : []),
    ...["--proc", "/proc", "--remount-ro", "/", "--chdir", "/"],
  ];
  const start = [...around, ...(filter ? ["--seccomp", "3"] : []), "--", INSIDE_ENGINE];
  const version = await tryOut({ program: bwrap, args: [...start, "--version"], env: {}, filter });
  return { program: bwrap, args: [...start, ...argumentsOf(kind, version, INSIDE_SCRIPT)], env: {}, filter };
}

/** Runs a program that ends by itself. Resolves to its output; rejects with what it said of its failure. @param {Command} command */
async function tryOut(command) {
  const child = startProgram(command);
  let [said, failure] = ["", ""];
  child.stdout.setEncoding("utf8").on("data", (/** @type {string} */ text) => (said += text));
  child.stderr.setEncoding("utf8").on("data", (/** @type {string} */ text) => (failure += text));
  const timer = setTimeout(() => child.kill("SIGKILL"), TRIAL_MS);
  try {
    /** @type {unknown} */
    const ending = await new Promise((resolve, reject) =>
      child
        .on("error", reject)
        .on("close", (/** @type {number | null} */ code, /** @type {string} */ signal) => resolve(code ?? signal)),
    );
    if (ending !== 0) throw new Error(failure || `${command.program} ended with ${ending}`);
    return said;
  } finally {
    clearTimeout(timer);
  }
}

/** The libraries that a program is linked with, and its loader. @param {string} program */
async function librariesOf(program) {
  try {
    const { stdout } = await run("ldd", [program], { env: { PATH: process.env.PATH ?? "" } });
    return [...stdout.matchAll(/(?:^|\s)(\/\S+) \(0x/g)].map(([, path]) => path);
  } catch {
    return []; // a program without libraries
  }
}

/** @param {string} script @returns {Promise<Command | undefined>} */
async function inDeno(script) {
  const deno = findDeno();
  if (!deno) return undefined;
  const env = surroundings();
  // A program in the PATH may be a script, which would leave Deno behind when it is killed.
  const { stdout } = await run(deno, ["eval", "console.log(Deno.execPath())"], { env, timeout: TRIAL_MS });
  return { program: stdout.trim(), args: argumentsOf("deno", "", script), env };
}

/** Deno: the one that runs this code, that of the npm package "deno", or a program in the PATH. */
function findDeno() {
  if ("Deno" in globalThis) return process.execPath;
  const { platform, arch } = process;
  const name = `@deno/${platform}-${arch}${platform === "linux" ? "-glibc" : ""}`;
  for (const from of [import.meta.url, join(process.cwd(), "package.json")]) {
    try {
      // The package's own command is a script, which would leave Deno behind when it is killed.
      const wrapper = createRequire(from).resolve("deno/package.json");
      const folder = dirname(createRequire(wrapper).resolve(`${name}/package.json`));
      return join(folder, platform === "win32" ? "deno.exe" : "deno");
    } catch {} // not installed there
  }
  return which("deno");
}

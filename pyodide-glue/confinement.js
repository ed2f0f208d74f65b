// The command that starts a guest's process, and the wall around it: bubblewrap where it works, else Deno's permissions.
// Decisions: docs/internals/guest-in-a-process.md.

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, delimiter, dirname, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { startProcess } from "./process.js";
import { filterFor } from "./seccomp.js";

/** @typedef {import("./process.js").Command} Command */
/** @typedef {"node" | "deno" | "bun"} Engine */

const run = promisify(execFile);
/** The time for a trial run, in milliseconds. */
const TRIAL_MS = 30_000;
const SCRIPT = new URL("../dist/process.mjs", import.meta.url);
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
      preparing ??= choose().then(
        ({ name, command }) => {
          confined = command;
          processes.confinement = name;
        },
        (error) => {
          preparing = undefined;
          throw error.message;
        },
      );
      return preparing;
    },

    /** @param {boolean} isConfined @param {Blob} script @param {MessagePort} port @param {MessagePort} control */
    start(isConfined, script, port, control) {
      const command = isConfined ? confined : unconfined();
      if (!command) throw new Error("it is not known yet what confines a process here");
      return startProcess(command, script, port, control);
    },
  };
  return processes;
}

/** @returns {Promise<{ name: string, command: Command }>} */
async function choose() {
  const failures = [];
  for (const way of [inBubblewrap, inDeno]) {
    try {
      const found = await way();
      if (found) return found;
    } catch (error) {
      const { message, stderr } = /** @type {Error & { stderr?: string }} */ (error);
      failures.push((stderr || message).trim().slice(0, 500));
    }
  }
  throw new Error([MISSING, ...failures].join("\n"));
}

/** The program that runs this code. @returns {Engine} */
const ownEngine = () => ("Deno" in globalThis ? "deno" : "Bun" in globalThis ? "bun" : "node");

/**
 * The arguments that run the script. Where an engine has permissions of its own, the guest gets none.
 * @param {Engine} engine @param {string} script
 */
function argumentsOf(engine, script) {
  if (engine === "bun") return ["run", "--no-install", script];
  if (engine === "deno") {
    const nothing = ["--no-prompt", "--no-config", "--no-lock", "--no-remote", "--no-npm"];
    return ["run", "--quiet", ...nothing, `--v8-flags=${NO_EVAL}`, script];
  }
  const permission = ["--permission", "--experimental-permission"].find((flag) =>
    process.allowedNodeEnvironmentFlags.has(flag),
  );
  const nothing = permission ? [permission, "--allow-worker", `--allow-fs-read=${script}`] : [];
  return ["--no-warnings", NO_EVAL, ...nothing, script];
}

/** The process without a wall. @returns {Command} */
function unconfined() {
  const engine = ownEngine();
  const script = fileURLToPath(SCRIPT);
  const args = engine === "deno" ? ["run", "--quiet", "--allow-all", script] : [script];
  return { program: process.execPath, args, env: surroundings() };
}

/** The variables that Deno needs to find its cache; no other program needs any. */
function surroundings() {
  const names = ["HOME", "DENO_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE", "SystemRoot"];
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

/** Finds a program. @param {string} name */
function which(name) {
  const folders = (process.env.PATH ?? "").split(delimiter).filter(Boolean);
  return folders.map((folder) => join(folder, name)).find((path) => existsSync(path));
}

async function inBubblewrap() {
  const bwrap = process.platform === "linux" && which("bwrap");
  if (!bwrap) return undefined;
  const engine = ownEngine();
  const libraries = await librariesOf(process.execPath);
  const filter = filterFor(process.arch);
  const around = [
    ...["--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"],
    ...["--new-session", "--die-with-parent", "--hostname", "sandglass", "--clearenv"],
    ...libraries.flatMap((library) => ["--ro-bind", library, library]),
    // Not the path itself: Deno rewrites the arguments of a program that gets it.
    ...["--ro-bind", `${dirname(process.execPath)}/./${basename(process.execPath)}`, INSIDE_ENGINE],
    ...["--ro-bind", fileURLToPath(SCRIPT), INSIDE_SCRIPT],
    // Debian's Node.js has a part of its own library there.
    ...(engine === "node" ? ["--ro-bind-try", "/usr/share/nodejs", "/usr/share/nodejs"] : []),
    ...(engine === "deno" ? ["--size", `${1 << 20}`, "--tmpfs", "/tmp", "--setenv", "DENO_DIR", "/tmp"] : []),
    ...["--proc", "/proc", "--remount-ro", "/", "--chdir", "/"],
  ];
  await run(bwrap, [...around, "--", INSIDE_ENGINE, "--version"], { env: {}, timeout: TRIAL_MS });
  const args = [
    ...around,
    ...(filter ? ["--seccomp", "3"] : []),
    ...["--", INSIDE_ENGINE, ...argumentsOf(engine, INSIDE_SCRIPT)],
  ];
  return { name: "bubblewrap", command: { program: bwrap, args, env: {}, filter } };
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

async function inDeno() {
  const deno = ownEngine() === "deno" ? process.execPath : (which("deno") ?? installedDeno());
  if (!deno) return undefined;
  const env = surroundings();
  await run(deno, ["--version"], { env, timeout: TRIAL_MS });
  return { name: "deno", command: { program: deno, args: argumentsOf("deno", fileURLToPath(SCRIPT)), env } };
}

/** The program of the npm package "deno". */
function installedDeno() {
  const { platform, arch } = process;
  const name = `@deno/${platform}-${arch}${platform === "linux" ? "-glibc" : ""}`;
  const file = platform === "win32" ? "deno.exe" : "deno";
  for (const from of [import.meta.url, join(process.cwd(), "package.json")]) {
    try {
      return join(createRequire(from).resolve(`${name}/package.json`), "..", file);
    } catch {} // not installed there
  }
  return undefined;
}

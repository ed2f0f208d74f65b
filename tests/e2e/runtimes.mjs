// Programs that run the package outside of browsers: Node.js, Deno and Bun.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, rename, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import * as esbuild from "esbuild";
import { root } from "./harness.mjs";

/** @typedef {"node" | "deno" | "bun"} Runtime */

/** The program of a runtime, and the arguments before a script; undefined if it is not installed. @param {string} runtime */
export function findRuntime(runtime) {
  const require = createRequire(import.meta.url);
  const of = (/** @type {string} */ name, /** @type {string} */ file) => {
    try {
      return join(dirname(require.resolve(`${name}/package.json`)), file);
    } catch {
      return undefined;
    }
  };
  const found = {
    node: () => process.execPath,
    deno: () => of(`@deno/linux-${process.arch}-glibc`, "deno"),
    bun: () => of(`@oven/bun-linux-${process.arch === "x64" ? "x64" : "aarch64"}`, "bin/bun"),
  }[runtime]?.();
  if (!found || !existsSync(found)) return undefined;
  return { program: found, args: runtime === "deno" ? ["run", "--quiet", "--allow-all"] : [] };
}

/**
 * Bundles a script of the tests, so that every runtime can run it. Its addresses of the site lead to files of this folder, and the
 * package stays as it is.
 * @param {string} name
 */
export async function bundle(name) {
  const folder = join(root, ".setup/runtimes");
  await mkdir(folder, { recursive: true });
  const { outputFiles } = await esbuild.build({
    entryPoints: [join(root, "tests/e2e", name)],
    bundle: true,
    write: false,
    format: "esm",
    platform: "node",
    logLevel: "silent",
    plugins: [
      {
        name: "site",
        setup(build) {
          const entry = join(root, "pyodide-glue/node.js");
          build.onResolve({ filter: /^\/pyodide-glue\/index\.js$/ }, () => ({ path: entry, external: true }));
          build.onResolve({ filter: /^\/pyodide-glue\/rlm\.js$/ }, () => ({
            path: join(root, "pyodide-glue/node-rlm.js"),
            external: true,
          }));
          build.onResolve({ filter: /^\/node_modules\// }, ({ path }) => ({ path: join(root, path) }));
        },
      },
    ],
  });
  const path = join(folder, name.replace(/\.m?js$/, ".mjs"));
  // The suites of several runtimes run at once, and none may read a file that another has half written.
  const unfinished = `${path}.${process.pid}`;
  await writeFile(unfinished, outputFiles[0].text);
  await rename(unfinished, path);
  return path;
}

/**
 * Runs a script. Resolves to its exit code, and what it wrote to its standard error.
 * @param {{ program: string, args: string[] }} runtime
 * @param {string[]} args  the script's path and arguments
 * @param {(line: string) => void} hear  gets each line of output
 * @param {{ env?: Record<string, string>, cwd?: string, more?: any[] }} [options]  `env`: more variables; `more`: more descriptors, as in `stdio`
 */
export async function runScript({ program, args: first }, args, hear, { env, cwd, more = [] } = {}) {
  const child = spawn(program, [...first, ...args], {
    stdio: ["ignore", "pipe", "pipe", ...more],
    cwd,
    env: { ...process.env, ...env },
  });
  createInterface({ input: child.stdout }).on("line", hear);
  let said = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (said = (said + text).slice(-4000)));
  /** @type {number | string} */
  const code = await new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => resolve(code ?? signal ?? "?"));
  });
  return { code, said };
}

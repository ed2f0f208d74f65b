// Makes pkg/ (the supervisor, Rust compiled to wasm) and dist/ (the guest, Pyodide, types).
//   node scripts/build.mjs [--dev]     --dev: unoptimised, for quick loops
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { homedir } from "node:os";
import { basename, join } from "node:path";
import * as esbuild from "esbuild";
import { namesOfScripts, readEmscripten } from "./emscripten.mjs";
import { root, run } from "./project.mjs";
import { makeSnapshot } from "./snapshot.mjs";
import { publicTypes } from "./public-types.mjs";
import { addFrames } from "./stack.mjs";
import { trimExports } from "./symbols.mjs";
import { assemble } from "./wat.mjs";

const dev = process.argv.includes("--dev");
const dist = join(root, "dist");
/** The supervisor's target. */
const WASM = "wasm32-unknown-unknown";
/** Versions of the npm packages whose code is in dist/, by name, for `LICENSES/README.md`. @type {Map<string, string>} */
const carried = new Map([["pyodide", await version("pyodide")]]);
/** The files that guests are made of, in dist/, by their names in pyodide-glue/assets.js. */
const FILES = {
  script: "guest.txt",
  wasm: "pyodide.asm.wasm",
  stdlib: "python_stdlib.zip",
  lock: "pyodide-lock.txt",
};
/** The memory that guests start from. It is made by a guest of the other files. */
const SNAPSHOT = "snapshot.bin";
/** The text of dist/assets.js, without the hashes of the snapshot and the supervisor. */
let assets = "";

await mkdir(dist, { recursive: true });
const built = await Promise.all([
  step("pkg/ (Rust to wasm)", supervisor),
  step("dist/ (the guest: worker and Pyodide)", guest),
  step("dist/display.js (HTML of guests)", display),
  step("dist/ai.js (tools of agents)", () => entry("ai")),
  step("dist/www/ (the playground's styles and editor)", playground),
]);
await writeFile(join(root, ".setup/carried.json"), JSON.stringify(Object.fromEntries(carried)));
if (
  built.includes(false) ||
  !(await step("dist/snapshot.bin (memory that guests start from)", snapshot)) ||
  !(await step("dist/index.d.ts (types)", types))
)
  process.exitCode = 1;

async function supervisor() {
  const cargo = ["cargo", "build", "--lib", "-p", "sandglass-browser", "--target", WASM];
  // Settings of cargo may name another folder, so cargo is told, too.
  const target = process.env.CARGO_TARGET_DIR || join(root, "target");
  const compiled = join(target, WASM, dev ? "debug" : "release", "sandglass.wasm");
  const pkg = join(root, "pkg");
  // The page passes the module's address (`pyodide-glue/assets.js`). A second one in the generated code would be copied by bundlers, too.
  const bindgen = ["wasm-bindgen", compiled, "--out-dir", pkg, "--target", "web", "--omit-default-module-path"];
  // Panics name files of crates. Without this, the names would begin with the builder's own folder.
  const crates = join(process.env.CARGO_HOME ?? join(homedir(), ".cargo"), "registry/src/");
  const flags = { CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS: `--remap-path-prefix=${crates}=` };
  const module = join(pkg, "sandglass_bg.wasm");
  const env = { CARGO_TARGET_DIR: target, ...(dev ? {} : flags) };
  await supervisorStep("cargo", [...cargo, ...(dev ? [] : ["--release"])], env);
  await rm(pkg, { recursive: true, force: true });
  await supervisorStep("wasm-bindgen", [...bindgen, ...(dev ? ["--debug"] : [])]);
  if (!dev) await supervisorStep("wasm-opt", ["wasm-opt", module, "-o", module, "-O"]);
  await copyFile(module, join(dist, "supervisor.wasm"));
}

/** Runs a step of the supervisor's build. Throws its first error. @param {string} name @param {string[]} command @param {Record<string, string>} [env] */
async function supervisorStep(name, command, env = {}) {
  const { ok, output } = await run(command, { log: join(root, `.setup/logs/${name}.log`), env });
  if (ok) return;
  const lines = output.trimEnd().split("\n");
  // The compiler's first error says most, so later errors must not push it out of sight.
  const first = lines.findIndex((line) => /^(error|Error)/.test(line));
  throw new Error((first < 0 ? lines.slice(-40) : lines.slice(first, first + 40)).join("\n"));
}

// Makes the guest's code and files, and dist/assets.js, which lists them for pyodide-glue/index.js.
async function guest() {
  const pyodide = join(root, "node_modules/pyodide");
  const original = addFrames(await readFile(join(pyodide, "pyodide.asm.wasm")));
  const wasm = trimExports(original, await namesOfScripts(join(pyodide, "pyodide.asm.mjs")));
  const [frame] = await Promise.all([
    // Kept as a text, because the script is inline in the frame's document.
    script("frame-script.js"),
    // One classic script, because a frame of opaque origin starts no other kind of worker in every browser.
    // Pyodide refuses classic workers, which it recognises by importScripts. Ours throws null by itself: for the message of a
    // TypeError about a call of a non-function, V8 would parse the whole script again. The directive must come first: in
    // sloppy code, V8 gives functions to whoever reads a stack (`CallSite.getFunction`).
    script("worker.js", { banner: { js: '"use strict";self.importScripts = () => { throw null; };' } }).then((text) =>
      writeFile(join(dist, FILES.script), text),
    ),
    // The process of a guest on Node, Deno or Bun: a module, which all three run.
    script("process-script.js", { format: "esm", platform: "node", legalComments: "none" }).then((text) =>
      writeFile(join(dist, "process.mjs"), text),
    ),
    copyFile(join(pyodide, "python_stdlib.zip"), join(dist, FILES.stdlib)),
    copyFile(join(pyodide, "pyodide-lock.json"), join(dist, FILES.lock)),
    writeFile(join(dist, FILES.wasm), wasm),
  ]);

  const integrity = await Promise.all(
    Object.entries(FILES).map(async ([asset, file]) => [asset, await digest(join(dist, file))]),
  );
  // Pages with a Content-Security-Policy allow the frame's script by this hash.
  const frameHash = `sha256-${createHash("sha256").update(frame).digest("base64")}`;
  const python = join(root, "pyodide-glue/python/sandglass");
  const sources = (await readdir(python, { recursive: true }))
    .filter((file) => file.endsWith(".py") && !/^(adapters|client|jupyter)\b/.test(file))
    .sort();
  const build = createHash("sha256").update(JSON.stringify(integrity));
  for (const file of sources) build.update(await readFile(join(python, file)));
  // The platform and versions that wheels must be built for.
  const { info } = JSON.parse(await readFile(join(dist, FILES.lock), "utf8"));
  const { version } = JSON.parse(await readFile(join(pyodide, "package.json"), "utf8"));
  const platform = { python: info.python, abi: info.abi_version, pyodide: version };
  const constants = {
    build: build.digest("hex"),
    frame,
    frameHash,
    integrity: { ...Object.fromEntries(integrity), snapshot: "", supervisor: "" },
    platform,
  };
  const lines = Object.entries(constants).map(([name, value]) => `export const ${name} = ${JSON.stringify(value)};\n`);
  assets = `// Generated by scripts/build.mjs.\n${lines.join("")}`;
  await writeFile(join(dist, "assets.js"), assets);
}

/**
 * Bundles a file of the glue into one classic script.
 * @param {string} entry
 * @param {esbuild.BuildOptions} [options]
 */
async function script(entry, options) {
  const { outputFiles, metafile } = await esbuild.build({
    entryPoints: [join(root, "pyodide-glue", entry)],
    write: false,
    metafile: true,
    bundle: true,
    format: "iife",
    platform: "browser",
    target: "es2022",
    minify: !dev,
    logLevel: "silent",
    // Pyodide derives addresses from its own, and a blob has none. Nothing is fetched from this address.
    // Pyodide must not see Bun either, whose workers cannot lose that name: it is to behave as in a browser.
    define: {
      "import.meta.url": '"https://guest.invalid/guest.js"',
      Bun: "undefined",
      STDLIB_BYTES: String((await stat(join(root, "node_modules/pyodide/python_stdlib.zip"))).size),
    },
    // Pyodide imports these on Node only.
    external: ["node:*", "ws"],
    plugins: [
      { name: "wat", setup: ({ onLoad }) => onLoad({ filter: /\.wat$/ }, wat) },
      { name: "emscripten", setup: ({ onLoad }) => onLoad({ filter: /pyodide\.asm\.mjs$/ }, emscripten) },
    ],
    ...options,
  });
  await carry(metafile);
  return /** @type {esbuild.OutputFile[]} */ (outputFiles)[0].text;
}

// Adds the snapshot to the files of dist/, which have to be there.
async function snapshot() {
  const file = join(dist, SNAPSHOT);
  assets = assets.replace('"supervisor":""', `"supervisor":"${await digest(join(dist, "supervisor.wasm"))}"`);
  await writeFile(join(dist, "assets.js"), assets);
  await writeFile(file, await makeSnapshot(await readFile(join(dist, FILES.wasm)), dev ? 6 : 9));
  await writeFile(join(dist, "assets.js"), assets.replace('"snapshot":""', `"snapshot":"${await digest(file)}"`));
}

/** Notes whose code a bundle has. @param {esbuild.Metafile | undefined} metafile */
async function carry(metafile) {
  for (const { inputs } of Object.values(metafile?.outputs ?? {}))
    for (const [file, { bytesInOutput }] of Object.entries(inputs)) {
      const name = /.*node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(file)?.[1];
      if (name && bytesInOutput > 0) carried.set(name, await version(name));
    }
}

/** The version of an installed npm package. @param {string} name @returns {Promise<string>} */
async function version(name) {
  return JSON.parse(await readFile(join(root, "node_modules", name, "package.json"), "utf8")).version;
}

/** @param {{ path: string }} file @returns {Promise<esbuild.OnLoadResult>} */
async function wat({ path }) {
  return { contents: await assemble(path), loader: "binary" };
}

/** @param {{ path: string }} file @returns {Promise<esbuild.OnLoadResult>} */
async function emscripten({ path }) {
  return { contents: await readEmscripten(path), loader: "js" };
}

/** Subresource integrity metadata. @param {string} path */
async function digest(path) {
  return `sha256-${createHash("sha256")
    .update(await readFile(path))
    .digest("base64")}`;
}

// The HTML tokenizer leaves character references as they are, so it does without the table of their names, which would be a
// third of the entry.
async function display() {
  const entities = `export class EntityDecoder {} export const DecodingMode = {}, htmlDecodeTree = null, xmlDecodeTree = null;`;
  await entry("display", [
    {
      name: "entities",
      setup(build) {
        build.onResolve({ filter: /^entities\// }, ({ path }) => ({ path, namespace: "entities" }));
        build.onLoad({ filter: /.*/, namespace: "entities" }, () => ({ contents: entities }));
      },
    },
  ]);
}

/**
 * Bundles an entry with its libraries, because pages load the others without a bundler.
 * @param {string} name
 * @param {esbuild.Plugin[]} [plugins]
 */
async function entry(name, plugins) {
  const { metafile } = await esbuild.build({
    entryPoints: [join(root, `pyodide-glue/${name}.js`)],
    outfile: join(dist, `${name}.js`),
    metafile: true,
    bundle: true,
    format: "esm",
    target: "es2022",
    minify: !dev,
    legalComments: "inline",
    logLevel: "silent",
    plugins,
  });
  await carry(metafile);
}

// Makes the package's types: those of the entries from their JSDoc, and those that src/ generates into pkg/.
async function types() {
  const folder = join(root, ".setup/types");
  await rm(folder, { recursive: true, force: true });
  for (const file of await readdir(dist)) if (file.endsWith(".d.ts")) await rm(join(dist, file));
  // The playground and tests import the built entries, so their types must lie beside them.
  for (const name of ["ai", "display"])
    await writeFile(join(dist, `${name}.d.ts`), `export * from "../pyodide-glue/${name}.js";\n`);
  const emit = ["--noEmit", "false", "--declaration", "--emitDeclarationOnly", "--rootDir", ".", "--outDir", folder];
  const { ok, output } = await run(["tsc", ...emit], { log: join(root, ".setup/logs/types.log") });
  if (!ok)
    console.warn(`the glue has type errors (npm test -- --only tsc):\n${output.split("\n").slice(0, 3).join("\n")}`);
  const { exports } = JSON.parse(await readFile(join(root, "package.json"), "utf8"));
  const entries = Object.values(exports).flatMap(({ types }) => (types ? [basename(types, ".d.ts")] : []));
  const generated = await readFile(join(root, "pkg/sandglass.d.ts"), "utf8");
  for (const [file, text] of await publicTypes(join(folder, "pyodide-glue"), entries, generated))
    await writeFile(join(dist, file), text);
}

// Bundles what the playground takes from others: its editor, Python's colours, which a page needs much sooner, and the reader of
// Markdown. Its own style sheets become one file.
async function playground() {
  await Promise.all([
    esbuild.build({
      entryPoints: [join(root, "www/sheets.css")],
      outdir: join(dist, "www"),
      bundle: true,
      minify: true,
      logLevel: "silent",
    }),
    bundle("codemirror", [
      `export { basicSetup, EditorView } from "codemirror";`,
      `export { Compartment, EditorState, Prec } from "@codemirror/state";`,
      `export { keymap, placeholder } from "@codemirror/view";`,
      `export { indentWithTab } from "@codemirror/commands";`,
      `export { HighlightStyle, indentUnit, syntaxHighlighting } from "@codemirror/language";`,
      `export { python } from "@codemirror/lang-python";`,
      `export { tags } from "@lezer/highlight";`,
    ]),
    bundle("markdown", [`export { Lexer } from "marked";`]),
    bundle("colours", [
      `export { parser } from "@lezer/python";`,
      `export { highlightTree, tagHighlighter, tags } from "@lezer/highlight";`,
    ]),
  ]);
}

/** @param {string} name @param {string[]} lines  the module's source */
async function bundle(name, lines) {
  const contents = lines.join("\n");
  await esbuild.build({
    stdin: { contents, resolveDir: root },
    outfile: join(dist, `www/${name}.js`),
    bundle: true,
    format: "esm",
    target: "es2022",
    minify: true,
    logLevel: "silent",
  });
  // These lines are valid types of the module, too.
  await writeFile(join(dist, `www/${name}.d.ts`), `${contents}\n`);
}

/**
 * Runs one part of the build and prints its outcome.
 * @param {string} name
 * @param {() => Promise<void>} work
 */
async function step(name, work) {
  const begin = Date.now();
  try {
    await work();
    console.log(`built ${name} in ${((Date.now() - begin) / 1000).toFixed(1)} s`);
    return true;
  } catch (error) {
    console.error(`could not build ${name}:\n${error instanceof Error ? error.message : error}`);
    return false;
  }
}

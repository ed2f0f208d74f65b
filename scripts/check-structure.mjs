// Checks rules about the source tree that no compiler checks.
import { execFileSync } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, posix } from "node:path";
import { parse } from "smol-toml";
import { againstLayers, circles, importsOfScripts } from "./layers.mjs";
import { environment, root } from "./project.mjs";
import { PACKAGE, pythonAgainstLayers } from "./python-layers.mjs";
import { checkRules } from "./rules.mjs";
import { importsOfModules } from "./rust-layers.mjs";
import { PAGE, brokenWays } from "./ways.mjs";

const output = (/** @type {string} */ program, /** @type {string[]} */ ...args) =>
  execFileSync(program, args, { cwd: root, env: environment, encoding: "utf8", maxBuffer: 1 << 26 });

/** All files that are committed, or that git would offer to commit. Links to folders, which crates have, are no files. */
const files = output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
  .split("\0")
  .filter((file) => file && statSync(join(root, file), { throwIfNoEntry: false })?.isFile());
const read = (/** @type {string} */ file) => readFileSync(join(root, file), "utf8");

const scripts = importsOfScripts(
  files.filter((file) => /\.m?js$/.test(file)),
  read,
);
/** The layers of pyodide-glue/ (see its README.md): in the page, in the frame or process, in the worker, and below all of them. */
const GLUE = [
  [
    ["index.js", "rlm.js", "models.js", "ai.js", "display.js", "node.js", "node-rlm.js"],
    ["supervisor.js", "confinement.js", "tool-schemas.js"],
    ["prefetch.js", "tidy-html.js", "filter-css.js", "process.js", "seccomp.js"],
    ["frame.js", "assets.js", "kept-database.js", "kept-files.js", "kept-runs.js", "kept-sessions.js"],
  ],
  [["frame-script.js", "process-script.js"]],
  [
    ["worker.js"],
    ["runtime.js", "lockdown.js"],
    ["bridge.js", "checkpoint.js", "install.js"],
    ["snapshot.js", "files.js", "libraries.js", "library.js", "nondeterminism.js"],
    ["file-names.js", "bytes.js", "packing.js", "recorder.js"],
  ],
  [["start-worker.js"], ["mailbox.js", "wheel.js", "pipe.js", "trusted-types.js", "sandbox-error.js"]],
].map((layers) => layers.map((names) => names.map((name) => `pyodide-glue/${name}`)));
const isGlue = (/** @type {string} */ file) => /^pyodide-glue\/[^/]+\.js$/.test(file);

/** Known circles between modules of a crate. A circle that is gone must leave this list, and no new one may come. */
const CIRCLES = [];

/** Files of more than 600 lines, and why each is one story. Tests are not counted. */
const LONG_LINES = 600;
/** @type {Record<string, string>} */
const LONG = {
  "crates/rlm/src/schema.rs": "one language, that of schemas: reading, checking and describing go together",
  "crates/core/src/protocol.rs": "the definition of one wire, a message after the other",
  "crates/rpc/src/messages.rs": "the definition of one wire, a message after the other",
  "host/src/backend/bubblewrap.rs": "one backend: its plan, and the spawn",
  "crates/jupyter/src/backend.rs": "one backend: its plan, and the spawn",
  "host/src/value.rs": "one table of types, three ways",
  "pyodide-glue/checkpoint.js": "one format: what is copied, and how it is put back",
  "pyodide-glue/python/sandglass/runtime/runtime.py":
    "the order in which a cell's surroundings are put up and taken down",
  "pyodide-glue/python/sandglass/vendored/cloudpickle/cloudpickle.py": "a package of others, unchanged",
  "src/sandbox.rs": "the public class, a method after the other",
};

/** The rules by name. Each returns its violations. @type {Record<string, () => string[]>} */
const RULES = {
  "only src/ and tests/web.rs name the browser": () =>
    files
      .filter((file) => file.endsWith(".rs") && !/^(src\/|tests\/web\.rs$)/.test(file))
      .flatMap((file) => linesWith(file, /\b(web_sys|js_sys|wasm_bindgen|gloo_timers|serde_wasm_bindgen)\b/)),

  "the core, the controller and the host depend on no browser crate": () =>
    output("cargo", "tree", "--workspace", "--locked", "--edges", "normal", "--prefix", "none")
      .split("\n")
      .filter((line) => /^(web-sys|js-sys|wasm-bindgen|gloo-)/.test(line)),

  "no file holds marks of a merge": () =>
    files
      .filter((file) => /\.(rs|m?js|ts|py|md|json|toml|css|html)$|ignore$/.test(file))
      .flatMap((file) => linesWith(file, /^(<{7}|>{7}) /)),

  "pyodide-glue/ imports along its layers": () =>
    againstLayers(new Map([...scripts].filter(([file]) => isGlue(file))), GLUE),

  "pages import the entries of pyodide-glue/ only": () =>
    [...scripts].flatMap(([file, imported]) =>
      imported
        .filter((other) => /^(www|demo)\//.test(file) && isGlue(other) && !GLUE[0][0].includes(other))
        .map((other) => `${file} imports ${other}`),
    ),

  "no JavaScript imports itself, around however many corners": () => circles(scripts),

  "pyodide-glue/README.md names each of its files": () =>
    GLUE.flat(2).filter((file) => !read("pyodide-glue/README.md").includes(`\`${file.replace("pyodide-glue/", "")}\``)),

  "modules of a crate form no circles but those that are known": () => {
    const found = circles(importsOfModules(files, read));
    const gone = CIRCLES.filter((circle) => !found.includes(circle)).map((circle) => `gone: ${circle}`);
    return [...found.filter((circle) => !CIRCLES.includes(circle)), ...gone];
  },

  "files have at most 600 lines, or a reason": () => {
    const isProduct = (/** @type {string} */ file) =>
      /\.(rs|py|js|mjs)$/.test(file) && !/(^|\/)(tests(\/|\.rs$)|sessions\/)/.test(file);
    const lines = (/** @type {string} */ file) => read(file).split("\n").length - 1;
    const long = files.filter((file) => isProduct(file) && lines(file) > LONG_LINES);
    const short = Object.keys(LONG)
      .filter((file) => !long.includes(file))
      .map((file) => `${file} needs no reason`);
    return [...long.filter((file) => !LONG[file]).map((file) => `${file} has ${lines(file)} lines`), ...short];
  },

  "nothing that is generated is committed": () =>
    files.filter((file) => /^(pkg|dist|target|node_modules|\.setup|\.venv)\//.test(file)),

  "no file names a path of this machine": () => {
    const paths = [root, homedir()].filter((path) => path !== "/").map((path) => `${path}/`);
    return files.filter((file) => paths.some((path) => read(file).includes(path)));
  },

  "package-lock.json names no registry": () => linesWith("package-lock.json", /"resolved"/),

  "everything has the version of package.json": () => {
    const { version } = JSON.parse(read("package.json"));
    const { packages } = JSON.parse(read("package-lock.json"));
    const { workspace } = parse(read("Cargo.toml"));
    const versions = {
      "package-lock.json": packages[""].version,
      "Cargo.toml": workspace.package.version,
      ...Object.fromEntries(
        Object.entries(workspace.dependencies)
          .filter(([, { path }]) => path)
          .map(([crate, dependency]) => [`Cargo.toml: ${crate}`, dependency.version]),
      ),
      "pyodide-glue/python/sandglass/__init__.py": /^__version__ = "(.*)"$/m.exec(read(`${PACKAGE}/__init__.py`))?.[1],
      ...Object.fromEntries(
        files
          .filter((file) => /^(README|docs\/.*)\.md$/.test(file))
          .flatMap((file) =>
            [...read(file).matchAll(/\bsandglass-(\d+\.\d+\.\d+)\.tgz/g)].map(([, tarball]) => [file, tarball]),
          ),
      ),
    };
    return Object.entries(versions)
      .filter(([, other]) => other !== version)
      .map(([file, other]) => `${file}: ${other}, and not ${version}`);
  },

  "published crates hold their files, and say what they are": () =>
    files
      .filter((file) => /^(host|crates\/[^/]+)\/Cargo\.toml$/.test(file))
      .flatMap((file) => {
        const folder = dirname(file);
        const { package: crate } = parse(read(file));
        const fields = ["description", "include", "keywords", "categories", "rust-version", "license"];
        const lacking = fields.filter((field) => !crate[field]).map((field) => `${file}: no ${field}`);
        const page = `${folder}/README.md`;
        if (!files.includes(page) || !/^```/m.test(read(page))) lacking.push(`${page} has no example`);
        const outside = files
          .filter((source) => source.startsWith(`${folder}/src/`) && source.endsWith(".rs"))
          .flatMap((source) =>
            [...read(source).matchAll(/include_(?:str|bytes)!\((?:concat!\()?\s*"([^"]*)"/g)]
              .filter(([, path = ""]) => !posix.join(dirname(source), path).startsWith(`${folder}/`))
              .map(([, path]) => `${source} includes ${path}`),
          );
        return [...lacking, ...outside];
      }),

  "pyodide-glue/python/ imports along its layers": () => pythonAgainstLayers(files, read),

  [`${PAGE} names functions that hand a message on`]: () => brokenWays(read),
};

checkRules(RULES);

/** @param {string} file @param {RegExp} pattern */
function linesWith(file, pattern) {
  return read(file)
    .split("\n")
    .flatMap((line, index) =>
      pattern.test(line) && !/^\s*\/\//.test(line) ? [`${file}:${index + 1}: ${line.trim()}`] : [],
    );
}

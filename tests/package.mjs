// Checks the npm package as its users get it: packs it, installs it in an empty folder, and checks its types and files.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, join, posix, relative } from "node:path";
import { checkPackage, createPackageFromTarballData } from "@arethetypeswrong/core";
import * as esbuild from "esbuild";
import { publint } from "publint";
import { formatMessage } from "publint/utils";
import { links } from "../scripts/markdown.mjs";
import { parts } from "../scripts/parts.mjs";
import { environment, root } from "../scripts/project.mjs";
import { checkRules } from "../scripts/rules.mjs";

const folder = mkdtempSync(join(tmpdir(), "sandglass-package-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const output = (/** @type {string} */ cwd, /** @type {string} */ program, /** @type {string[]} */ ...args) =>
  execFileSync(program, args, { cwd, env: environment, encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });

const [{ filename }] = JSON.parse(
  output(root, "npm", "pack", "--json", "--ignore-scripts", "--silent", "--pack-destination", folder),
);
const tarball = join(folder, filename);
const app = join(folder, "app");
mkdirSync(app);
writeFileSync(join(app, "package.json"), JSON.stringify({ name: "app", private: true, type: "module" }));
output(app, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--offline", "--silent", tarball);

const manifest = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
const installed = join(app, "node_modules", manifest.name);
const files = readdirSync(installed, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => relative(installed, join(entry.parentPath, entry.name)));
const read = (/** @type {string} */ file) => readFileSync(join(installed, file), "utf8");

/** The entries with types: what an app imports. */
const entries = Object.entries(manifest.exports)
  .filter(([, { types }]) => types)
  .map(([path]) => posix.join(manifest.name, path));
/** The entries that are about a page's elements. */
const OF_PAGES = ["sandglass/display"];

/** Projects that must be able to use the types: module resolution, libraries of types, and packages of types. */
const PROJECTS = [
  { resolution: "node16", lib: ["es2022", "dom"] },
  { resolution: "bundler", lib: ["es2022", "dom", "dom.iterable"] },
  { resolution: "bundler", lib: ["esnext", "webworker"] },
  { resolution: "node16", lib: ["es2022"], types: ["node"] },
  { resolution: "bundler", lib: ["es2022"] },
];

/** An app that uses every entry, rightly and wrongly. @param {string[]} used  the entries */
const source = (used) =>
  [
    ...used.map((entry, number) => `import * as entry${number} from "${entry}";`),
    `import { createSandbox, SandboxError, type CodeExecution, type Sandbox, type SandboxOptions } from "sandglass";`,
    `import { runRlm } from "sandglass/rlm";`,
    `const options: SandboxOptions = { timeout: 1_000, onLLMQuery: async (prompt) => \`about \${prompt}\` };`,
    `export async function use(): Promise<string | undefined> {`,
    `  const sandbox: Sandbox = await createSandbox(options);`,
    `  const run: CodeExecution = await sandbox.execute("1", { timeout: 5 });`,
    `  const { answer } = await runRlm({ task: run.stdout, model: async () => "an answer" });`,
    `  // @ts-expect-error: options have their types`,
    `  await createSandbox({ timeout: "5" });`,
    `  // @ts-expect-error: there is no such field`,
    `  run.answer;`,
    `  return answer instanceof SandboxError ? answer.code : run.result;`,
    `}`,
    `export { ${used.map((_, number) => `entry${number}`).join(", ")} };`,
  ].join("\n");

/** @param {typeof PROJECTS[number]} project @returns {string[]} the compiler's errors */
function typeErrors({ resolution, lib, types = [] }) {
  const used = entries.filter((entry) => lib.includes("dom") || !OF_PAGES.includes(entry));
  writeFileSync(join(app, "app.ts"), source(used));
  const compilerOptions = {
    ...{ strict: true, noEmit: true, skipLibCheck: false, exactOptionalPropertyTypes: true, target: "es2022" },
    ...{ module: resolution === "bundler" ? "es2022" : resolution, moduleResolution: resolution, lib, types },
    typeRoots: [join(root, "node_modules/@types")],
  };
  writeFileSync(join(app, "tsconfig.json"), JSON.stringify({ compilerOptions, files: ["app.ts"] }));
  try {
    output(app, "tsc", "--pretty", "false", "-p", ".");
    return [];
  } catch (error) {
    return /** @type {{ stdout: string }} */ (error).stdout.trim().split("\n");
  }
}

/** The files that this file makes somebody load or read: their paths, or their bare names. @param {string} file */
function named(file) {
  const beside = (/** @type {string} */ path) => posix.normalize(posix.join(posix.dirname(file), path));
  if (file.endsWith(".md")) return links(read(file)).map((link) => beside(link.replace(/#.*/, "")));
  if (!/\.(js|json|ts)$/.test(file)) return [];
  const code = read(file).replace(/\/\*[^]*?\*\/|(?<=^|\s)\/\/.*$/gm, "");
  return [...code.matchAll(/["'`]([^"'`\s]+)["'`]/g)].map(([, name = ""]) =>
    /^\.\.?\//.test(name) ? beside(name) : name,
  );
}

/** The files of the package that nobody has a use for. */
function unused() {
  const used = new Set(["package.json", "README.md", "LICENSE-MIT", "LICENSE-APACHE"]);
  for (const file of used) {
    // A module of types is named as if it were code.
    const names = new Set(named(file).flatMap((name) => [name, name.replace(/\.js$/, ".d.ts")]));
    for (const other of files) if (names.has(other) || names.has(basename(other))) used.add(other);
  }
  return files.filter((file) => !used.has(file) && !file.startsWith("LICENSES/"));
}

/** The modules that modules of the package import, and that it lacks. */
function missing() {
  const modules = files.filter((file) => file.endsWith(".js"));
  return modules.flatMap((file) =>
    [...read(file).matchAll(/^(?:import|export)\b[^"';=]*?["'](\.[^"']+)["']/gm)]
      .map(([, path = ""]) => posix.join(posix.dirname(file), path))
      .filter((path) => !files.includes(path))
      .map((path) => `${file} imports ${path}`),
  );
}

/** The names that an entry exports in one place only: on Node, or in browsers. */
function oneSided() {
  /** @type {Record<string, string>[]} */
  const both = Object.values(manifest.exports).filter(({ browser, node }) => browser && node);
  return both.flatMap(({ browser = "", node = "" }) => {
    const [inBrowsers, onNode] = [exportsOf(browser), exportsOf(node)];
    return [...inBrowsers, ...onNode]
      .filter((name) => !inBrowsers.includes(name) || !onNode.includes(name))
      .map((name) => `${name} is in one of ${browser} and ${node} only`);
  });
}

/** The names that a module of the package exports. @param {string} file @returns {string[]} */
function exportsOf(file) {
  const metafile = esbuild.buildSync({
    ...{ entryPoints: [join(installed, file)], bundle: true, write: false, metafile: true, outdir: folder },
    ...{ format: "esm", platform: "node", logLevel: "silent" },
  }).metafile;
  return Object.values(metafile.outputs).flatMap((output) => output.exports);
}

/** Parts that `LICENSES/README.md` does not name, and licences without a part or without a text. */
function licences() {
  const all = parts();
  const named = new Set(all.flatMap((part) => part.licences));
  const there = new Set(files.filter((file) => /^LICENSES\/.*\.txt$/.test(file)).map((file) => basename(file, ".txt")));
  const carried = Object.entries(JSON.parse(readFileSync(join(root, ".setup/carried.json"), "utf8")));
  const isNamed = (/** @type {string} */ name, /** @type {unknown} */ version) =>
    all.some((part) => name === part.name.toLowerCase() && part.version === version);
  const own = ["LICENSE-MIT", "LICENSE-APACHE"].filter((file) => !files.includes(file));
  return [
    ...own,
    ...carried
      .filter(([name, version]) => !isNamed(basename(name), version))
      .map(([name, version]) => `no row is of ${name} ${version}`),
    ...[...named].filter((name) => !there.has(name)).map((name) => `no text of ${name}`),
    ...[...there].filter((name) => !named.has(name)).map((name) => `nothing is under ${name}`),
  ];
}

/** Names of types that browsers have as globals, and that would hide or be hidden in an app. */
function collisions() {
  const typescript = createRequire(createRequire(import.meta.url).resolve("@arethetypeswrong/core")).resolve(
    "typescript",
  );
  const dom = readFileSync(join(dirname(typescript), "lib.dom.d.ts"), "utf8");
  const globals = new Set(
    [...dom.matchAll(/^(?:interface|type|declare var|declare function) (\w+)/gm)].map(([, name]) => name),
  );
  if (!globals.has("Event")) return [`no globals were read from ${typescript}`];
  const types = files.filter((file) => /^dist\/[^/]*\.d\.ts$/.test(file));
  return types.flatMap((file) =>
    [...read(file).matchAll(/^export (?:declare )?(?:interface|type|class|function) (\w+)/gm)]
      .filter(([, name]) => globals.has(name))
      .map(([, name]) => `${file}: ${name}`),
  );
}

const lint = await publint({ pkgDir: installed, strict: true, pack: false });
// The package has modules only, and needs the `exports` of its package.json.
const KNOWN = ["NoResolution", "CJSResolvesToESM"];
const wrong = await checkPackage(createPackageFromTarballData(readFileSync(tarball)), {});
const problems = wrong.types
  ? wrong.problems.filter(
      (problem) =>
        !(KNOWN.includes(problem.kind) && "resolutionKind" in problem && /^node10|-cjs$/.test(problem.resolutionKind)),
    )
  : [{ kind: "it has no types" }];

checkRules({
  ...Object.fromEntries(
    PROJECTS.map((project) => [
      `the types are right with ${[project.resolution, ...project.lib, ...(project.types ?? [])].join(", ")}`,
      () => typeErrors(project),
    ]),
  ),
  "no public type has the name of a global of browsers": collisions,
  "an entry exports the same names on Node and in browsers": oneSided,
  "every module that a module imports is there": missing,
  "every file of the package is used": unused,
  "each part's licence is there": licences,
  "installing the package runs nothing and brings nothing": () =>
    ["preinstall", "install", "postinstall", "prepare"]
      .filter((script) => manifest.scripts?.[script])
      .concat(Object.keys(manifest.dependencies ?? {})),
  "publint finds nothing": () => lint.messages.map((message) => formatMessage(message, manifest) ?? message.code),
  "are the types wrong? No": () => problems.map((problem) => JSON.stringify(problem)),
});

// `npm run release`: makes all files of a version in release/VERSION/, each checked. It publishes nothing, and prints the commands that would.
//   npm package, wheels and source of the Python package, crates, two bills of materials, the changes, SHA256SUMS
// See docs/internals/releasing.md.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import { firstMinute } from "./first-minute.mjs";
import { mustRun, root, run } from "./project.mjs";
import { billOfPackage, billOfProgram } from "./sbom.mjs";

const { name, version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
/** The crate of the npm package; it is not published. */
const NOT_PUBLISHED = "sandglass-browser";
const folder = join(root, "release", version);
const python = join(root, ".setup/release/bin/python");
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
/** Checks that could not run, and work that is left. @type {string[]} */
const open = [];

await step("checking the tree", tree);
await step("checking versions, documents and licences", async () => {
  for (const script of ["check-structure", "check-texts"]) await must(["node", `scripts/${script}.mjs`]);
  await must(["cargo", "deny", "--workspace", "check", "licenses", "bans", "sources"]);
});
await step("looking for known weaknesses", async () => {
  // Both need a database from the network, which says nothing about this version when it is not there.
  await tryTo("npm audit", ["npm", "audit", "--json"], /"auditReportVersion"/);
  await tryTo(
    "cargo deny advisories",
    ["cargo", "deny", "--workspace", "check", "advisories"],
    /^error\[(vulnerability|unmaintained|unsound|yanked)/m,
  );
});
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
await step("building the npm package", async () => {
  await must(["node", "scripts/build.mjs"]);
  await must(["node", "tests/package.mjs"]);
  await must(["npm", "pack", "--ignore-scripts", "--pack-destination", folder]);
});
await step("building the Python package", pythonPackage);
await step("building the crates, each from its own files alone", crates);
await step("writing bills of materials and changes", texts);
await step("checking that the tree is as it was", tree);

const files = readdirSync(folder).sort();
const sum = (/** @type {string} */ file) => createHash("sha256").update(readFileSync(join(folder, file)));
writeFileSync(join(folder, "SHA256SUMS"), files.map((file) => `${sum(file).digest("hex")}  ${file}\n`).join(""));
const here = relative(root, folder);
const named = (/** @type {RegExp} */ ending) =>
  files.filter((file) => ending.test(file)).map((file) => `${here}/${file}`);
console.log(`
${[...files, "SHA256SUMS"].map((file) => `${here}/${file}`).join("\n")}

${open.map((line) => `open: ${line}\n`).join("")}Nothing was published. These commands would publish ${version}:

  npm publish ${named(/\.tgz$/)}
  .setup/release/bin/twine upload ${named(/\.whl$|\.tar\.gz$/).join(" ")}
  cargo publish --workspace --exclude ${NOT_PUBLISHED}
  git tag v${version}`);

/** Fails when the tree has changes: what is released is a commit. */
async function tree() {
  const { output } = await run(["git", "status", "--porcelain"], { log: log("git") });
  if (output !== "") throw new Error(`files differ from the commit: commit or remove them\n${output}`);
}

async function pythonPackage() {
  await must([python, "-m", "build", "--outdir", folder, "pyodide-glue/python"]);
  await must(["node", "scripts/wheel.mjs"]);
  const made = join(root, "dist/python");
  for (const file of readdirSync(made)) copyFileSync(join(made, file), join(folder, file));
  const built = readdirSync(folder).filter((file) => /\.whl$|\.tar\.gz$/.test(file));
  await must([python, "-m", "twine", "check", "--strict", ...built.map((file) => join(folder, file))]);
  // pip takes the wheel with the program, because it fits this machine best.
  await firstMinute(["--find-links", folder, "sandglass-repl"], "pyodide-glue/python/README.md");
}

async function crates() {
  const made = join(target, "package");
  const are = (/** @type {string} */ file) => file.endsWith(`-${version}.crate`);
  // Crates of an earlier version of a crate's name must not come along.
  mkdirSync(made, { recursive: true });
  for (const file of readdirSync(made).filter(are)) rmSync(join(made, file));
  await must(["cargo", "package", "--workspace", "--exclude", NOT_PUBLISHED, "--locked"]);
  for (const file of readdirSync(made).filter(are)) copyFileSync(join(made, file), join(folder, file));
}

async function texts() {
  const { output } = await run(["git", "log", "-1", "--format=%cI"], { log: log("git") });
  const time = new Date(output.trim()).toISOString();
  const bills = { [name]: billOfPackage(version, time), "sandglass-cli": billOfProgram(version, time) };
  for (const [subject, bill] of Object.entries(bills))
    writeFileSync(join(folder, `${subject}-${version}.cdx.json`), `${JSON.stringify(bill, undefined, 1)}\n`);
  const parts = readFileSync(join(root, "CHANGELOG.md"), "utf8").split(/^(?=## )/m);
  const part = (/** @type {string} */ title) => parts.find((text) => text.split("\n")[0]?.startsWith(`## ${title}`));
  if (!part(version)) open.push(`CHANGELOG.md has no part "${version}", so that "Unreleased" was taken: rename it`);
  const changes = part(version) ?? part("Unreleased");
  if (!changes) throw new Error(`CHANGELOG.md has neither a part "## ${version}" nor "## Unreleased"`);
  writeFileSync(join(folder, "CHANGES.md"), changes);
}

/**
 * Runs a check that needs the network. A finding ends the release; a check that could not run stays open.
 * @param {string} what
 * @param {string[]} command
 * @param {RegExp} found  in the output of a check that took place
 */
async function tryTo(what, command, found) {
  const { ok, output } = await run(command, { log: log(what) });
  if (ok) return;
  if (found.test(output)) throw new Error(`${what} has found something:\n${output.slice(-3000)}`);
  open.push(`${what} could not run here, see ${relative(root, log(what))}`);
}

/** @param {string[]} command */
async function must(command) {
  await mustRun(command, { log: log(command.slice(0, 3).join(" ")), timeoutSeconds: 3600 });
}

/** The log of a command. @param {string} what */
function log(what) {
  return join(root, ".setup/logs", `release-${what.replace(/.*\/|[^\w.-]+/g, "-")}.log`);
}

/** @param {string} what @param {() => Promise<void>} work */
async function step(what, work) {
  const begin = Date.now();
  console.log(`release: ${what} …`);
  try {
    await work();
  } catch (error) {
    console.error(`release: ${what} failed: ${error instanceof Error ? error.message : error}`);
    process.exit(1);
  }
  console.log(`release: ${what}: done (${((Date.now() - begin) / 1000).toFixed(0)} s)`);
}

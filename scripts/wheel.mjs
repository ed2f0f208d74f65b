// `npm run wheel`: makes the wheel of the Python package for this kind of machine, with the program `sandglass-host` in it, in dist/python/.
//   npm run wheel -- --try           installs the wheel in a new environment, runs the README's example, and prints the seconds of each step.
//                                    It takes the wheel that is there, and makes one only if there is none
//   npm run wheel -- --profile dev   a wheel for a quick look, with the program of a development build
// maturin builds the program, and reads from it on which Linux it runs (the tag `manylinux_…`). The package's pyproject.toml makes the wheel without
// the program, for other machines. This script changes its build system and nothing else: docs/internals/python-client.md.
import { cpSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { parse, stringify } from "smol-toml";
import { firstMinute } from "./first-minute.mjs";
import { mustRun, root, run } from "./project.mjs";
import { billOfProgram } from "./sbom.mjs";

const { values: options } = parseArgs({
  options: { profile: { type: "string", default: "release" }, try: { type: "boolean" } },
});
const target = process.env.CARGO_TARGET_DIR ?? join(root, "target");
const source = join(root, "pyodide-glue/python");
/** A copy of the package, with files in place of its links. */
const copy = join(target, "wheel");
const folder = join(root, "dist/python");
const log = join(root, ".setup/logs/wheel.log");
/** The bill of materials of the program, which the wheel has beside its metadata. */
const BILL = "sandglass-cli.cdx.json";
const pyproject = parse(readFileSync(join(source, "pyproject.toml"), "utf8"));
const maturin = readFileSync(join(root, "scripts/wheel.txt"), "utf8").match(/^maturin==.*/m)?.[0];

mkdirSync(folder, { recursive: true });
const wheels = () => readdirSync(folder).filter((file) => file.endsWith(".whl"));
if (!options.try || wheels().length === 0) await make();
const [wheel] = wheels();
if (!wheel) throw new Error("maturin made no wheel: see .setup/logs/wheel.log");
const mebibytes = statSync(join(folder, wheel)).size / 2 ** 20;
console.log(`dist/python/${wheel} (${mebibytes.toFixed(1)} MiB)`);
if (options.try) {
  const steps = await firstMinute([join(folder, wheel)]);
  const all = steps.reduce((sum, [, seconds]) => sum + seconds, 0);
  for (const [name, seconds] of [...steps, ["from the wheel to an answered llm_query", all]])
    console.log(`${Number(seconds).toFixed(1).padStart(6)} s  ${name}`);
}

async function make() {
  rmSync(copy, { recursive: true, force: true });
  mkdirSync(copy, { recursive: true });
  const isSource = (/** @type {string} */ path) => !/__pycache__|\/\.|\.pyc$/.test(path.slice(root.length));
  cpSync(join(source, "sandglass"), join(copy, "sandglass"), { recursive: true, filter: isSource });
  cpSync(join(source, "README.md"), join(copy, "README.md"));
  for (const licence of ["LICENSE-APACHE", "LICENSE-MIT"]) cpSync(join(root, licence), join(copy, licence));
  const project = {
    project: pyproject.project,
    "build-system": { requires: [maturin], "build-backend": "maturin" },
    tool: {
      maturin: {
        bindings: "bin",
        "manifest-path": join(root, "crates/cli/Cargo.toml"),
        "module-name": "sandglass",
        "python-source": ".",
        strip: options.profile === "release",
        locked: true,
        // maturin's own bill would name folders of this machine.
        sbom: { rust: false, include: [BILL] },
      },
    },
  };
  writeFileSync(join(copy, "pyproject.toml"), stringify(project));
  const { output: time } = await run(["git", "log", "-1", "--format=%cI"], { log });
  const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  writeFileSync(join(copy, BILL), JSON.stringify(billOfProgram(version, new Date(time.trim()).toISOString())));
  for (const file of wheels()) rmSync(join(folder, file));

  await mustRun([join(root, ".setup/wheel/bin/maturin"), "build", "--profile", options.profile, "--out", folder], {
    log,
    cwd: copy,
    timeoutSeconds: 3600,
    env: { CARGO_TARGET_DIR: target },
  });
}

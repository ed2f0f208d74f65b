// Bills of materials, in CycloneDX's JSON: what the npm package carries, and what the program for servers is made of.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parse } from "smol-toml";
import { parts } from "./parts.mjs";
import { environment, root } from "./project.mjs";

const LICENCE = "MIT OR Apache-2.0";

/** The bill of the npm package. @param {string} version @param {string} timestamp */
export function billOfPackage(version, timestamp) {
  const carried = parts()
    .filter(({ name }) => !name.startsWith("Rust's standard library"))
    .map(({ name, version, licence }) => ({
      type: "library",
      "bom-ref": name,
      name,
      ...(version ? { version } : {}),
      licenses: [licence === "public domain" ? { license: { name: licence } } : { expression: spdx(licence) }],
    }));
  const linked = crates("sandglass-browser", "wasm32-unknown-unknown");
  return bill({ name: "sandglass", version, purl: `pkg:npm/sandglass@${version}` }, [...carried, ...linked], timestamp);
}

/** The bill of the program `sandglass-host`. @param {string} version @param {string} timestamp */
export function billOfProgram(version, timestamp) {
  const linked = crates("sandglass-cli", "x86_64-unknown-linux-gnu");
  const carried = [cloudpickle(), ...linked];
  return bill({ name: "sandglass-cli", version, purl: `pkg:cargo/sandglass-cli@${version}` }, carried, timestamp);
}

/** The copy of a Python package that the guests' runtime carries. */
function cloudpickle() {
  const text = readFileSync(join(root, "pyodide-glue/python/sandglass/vendored/cloudpickle/__init__.py"), "utf8");
  const version = /^__version__ = "(.*)"$/m.exec(text)?.[1];
  if (!version) throw new Error("the copy of cloudpickle does not say its version");
  const purl = `pkg:pypi/cloudpickle@${version}`;
  return {
    type: "library",
    "bom-ref": purl,
    name: "cloudpickle",
    version,
    licenses: [{ expression: "BSD-3-Clause" }],
    purl,
  };
}

/** @param {{ name: string, version: string, purl: string }} subject @param {{ "bom-ref": string }[]} components @param {string} timestamp */
function bill({ purl, ...subject }, components, timestamp) {
  const component = { type: "application", "bom-ref": purl, ...subject, licenses: [{ expression: LICENCE }], purl };
  return {
    bomFormat: "CycloneDX",
    specVersion: "1.6",
    version: 1,
    metadata: { timestamp, component },
    components,
    dependencies: [{ ref: purl, dependsOn: components.map((one) => one["bom-ref"]) }],
  };
}

/**
 * The crates that are linked into a crate of ours: no macros, and nothing that only builds or tests need.
 * @param {string} name
 * @param {string} target
 */
function crates(name, target) {
  const command = ["metadata", "--format-version", "1", "--locked", "--filter-platform", target];
  const options = /** @type {const} */ ({ cwd: root, env: environment, encoding: "utf8", maxBuffer: 1 << 28 });
  const { packages, resolve } = JSON.parse(execFileSync("cargo", command, options));
  const nodes = new Map(resolve.nodes.map((/** @type {any} */ node) => [node.id, node]));
  const isMacro = (/** @type {any} */ one) =>
    one.targets.some((/** @type {any} */ { kind }) => kind.includes("proc-macro"));
  const byId = new Map(packages.map((/** @type {any} */ one) => [one.id, one]));
  const linked = new Set(
    packages.filter((/** @type {any} */ one) => one.name === name).map((/** @type {any} */ { id }) => id),
  );
  for (const id of linked)
    for (const { pkg, dep_kinds: kinds } of nodes.get(id).deps)
      if (kinds.some((/** @type {any} */ { kind }) => kind === null) && !isMacro(byId.get(pkg))) linked.add(pkg);

  const lock = parse(readFileSync(join(root, "Cargo.lock"), "utf8"));
  const checksums = new Map(
    /** @type {any[]} */ (lock.package).map(({ name, version, checksum }) => [`${name}@${version}`, checksum]),
  );
  return [...linked]
    .map((id) => byId.get(id))
    .filter((one) => one.name !== name)
    .map(({ name, version, license }) => {
      const checksum = checksums.get(`${name}@${version}`);
      const purl = `pkg:cargo/${name}@${version}`;
      return {
        ...{ type: "library", "bom-ref": purl, name, version, purl },
        licenses: [{ expression: spdx(license) }],
        ...(checksum ? { hashes: [{ alg: "SHA-256", content: checksum }] } : {}),
      };
    })
    .sort((a, b) => (a.purl < b.purl ? -1 : 1));
}

/** A licence in SPDX's form: crates may still write `/`, and tables for people write words. @param {string} licence */
const spdx = (licence) => licence.replace(/\s*\/\s*| or /g, " OR ").replace(" with ", " WITH ");

// Portable states between guests with Python 3.14, as in pages, and the versions of Python on this machine, both ways. On Node.
//   node tests/e2e/portable.mjs [--only part of a name]
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createSandbox } from "sandglass";
import { readArguments, root, Score } from "./harness.mjs";

const score = new Score(readArguments().only);
const folder = mkdtempSync(join(tmpdir(), "portable-"));
const others = join(root, ".setup/python");
/** Programs of Python by version. */
const pythons = [
  ["the default", join(root, ".venv/bin/python")],
  ...(existsSync(others) ? readdirSync(others).sort() : []).map((name) => [name, join(others, name, "bin/python")]),
];
const script = join(root, "tests/python/portable_elsewhere.py");
const elsewhere = (/** @type {string} */ program, /** @type {string[]} */ ...args) =>
  execFileSync(program, [script, ...args], { encoding: "utf8", maxBuffer: 1 << 26 });
/** Removes the variables of a kind. */
const CLEAR = "for _name in [n for n in globals() if n[:2] != '__']: del globals()[_name]";

/** Code and check of each kind that needs Python alone. @type {[name: string, [code: string, way: string, check: string]][]} */
const kinds = Object.entries(JSON.parse(elsewhere(pythons[0][1], "kinds"))).filter(
  ([, [code, way]]) => way === "any" && !/numpy|pandas|ZoneInfo|threading/.test(code),
);
const sandbox = await createSandbox();
await sandbox.initialize(null);

/** Runs code, and fails with Python's own words. @param {string} code */
async function run(code) {
  const { outcome, traceback } = await sandbox.execute(code);
  if (outcome !== "ok") throw new Error(`${outcome}: ${traceback}`);
}

/**
 * Does something for each kind, and returns what went wrong.
 * @param {(name: string, code: string, check: string) => Promise<void>} body
 */
async function forEach(body) {
  const problems = [];
  for (const [name, [code, , check]] of kinds) {
    await run(CLEAR);
    await body(name, code, check).catch((error) => problems.push(`${name}: ${error.message.slice(-400)}`));
  }
  return problems;
}

/** States of this Python by kind, in base64. @type {Record<string, string>} */
const written = {};
await score.test(`${kinds.length} kinds of values are the same in another guest of a page`, () =>
  forEach(async (name, code, check) => {
    await run(code);
    const { state } = await sandbox.captureState();
    written[name] = Buffer.from(state).toString("base64");
    await run(CLEAR);
    assert.deepEqual(await sandbox.openState(state), []);
    await run(check);
  }),
);
for (const [version, program] of pythons) {
  await score.test(`${version} Python of this machine reads what a page wrote`, () => {
    const file = join(folder, "page");
    writeFileSync(file, JSON.stringify(written));
    assert.ok(Object.keys(written).length > 100);
    const failed = JSON.parse(elsewhere(program, "read", file).trimEnd().split("\n").at(-1) ?? "");
    delete failed.Optional; // Python 3.14 has no other type for it than that of `str | None`
    return Object.entries(failed).map(([name, why]) => `${name}: ${why}`);
  });
  await score.test(`a page reads what ${version} Python of this machine wrote`, () => {
    const file = join(folder, "host");
    elsewhere(program, "write", file);
    const states = JSON.parse(readFileSync(file, "utf8"));
    return forEach(async (name, _, check) => {
      assert.deepEqual(await sandbox.openState(Buffer.from(states[name], "base64")), []);
      await run(check);
    });
  });
}
await score.test("a page names the variables of a package that it lacks, and sets the others", async () => {
  const file = join(folder, "host");
  elsewhere(pythons[0][1], "write", file);
  const state = Buffer.from(JSON.parse(readFileSync(file, "utf8"))["NumPy Generator"], "base64");
  await run(CLEAR);
  const lost = await sandbox.openState(state);
  assert.deepEqual(lost.map(({ name }) => name).sort(), ["np", "v"]);
  assert.ok(lost.every(({ reason }) => reason.includes("numpy")));
  await run("assert expected and copy");
  return [];
});
await score.test("a damaged state is refused, and sets nothing", async () => {
  await run(`${CLEAR}\nx = 1`);
  const { state, lost } = await sandbox.captureState();
  assert.deepEqual(lost, []);
  for (const bytes of [state.slice(0, -1), state.map((byte, at) => (at === 80 ? byte ^ 1 : byte)), new Uint8Array(9)]) {
    await run("x = 2");
    await assert.rejects(sandbox.openState(bytes), { code: "invalid_option" });
    await run("assert x == 2");
  }
  await assert.rejects(sandbox.openState(/** @type {any} */ ("text")), { code: "invalid_option" });
  return [];
});
await score.test("a state that is too large rejects, and the sandbox goes on", async () => {
  const small = await createSandbox({ maxValueSize: 1 << 20 });
  try {
    await small.initialize(null);
    await small.execute("x = bytes(1 << 20)");
    await assert.rejects(small.captureState(), { code: "not_serializable" });
    assert.equal((await small.execute("len(x)")).result, String(1 << 20));
  } finally {
    await small.destroy();
  }
  return [];
});
await sandbox.destroy();
rmSync(folder, { recursive: true });
score.end();

// Tests of scripts/side-by-side.mjs, which runs the suites of `npm test`: with jobs that end when they are told to. And of the
// processor seconds that project.mjs counts for each of them.
//   node tests/side-by-side.mjs
import { deepStrictEqual, ok, rejects } from "node:assert";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "../scripts/project.mjs";
import { sideBySide, spread } from "../scripts/side-by-side.mjs";
import { Score } from "./e2e/harness.mjs";

const score = new Score();

/**
 * Runs these jobs on two processors. `end` ends a running job and resolves when the next ones have begun.
 * @param {import("../scripts/side-by-side.mjs").Job[]} jobs
 */
function start(jobs) {
  /** @type {Map<string, () => void>} */
  const running = new Map();
  const over = sideBySide(jobs, 2, ({ name }) => new Promise((resolve) => running.set(name, () => resolve(undefined))));
  return {
    over,
    now: () => [...running.keys()].join(" "),
    async end(/** @type {string} */ name) {
      running.get(name)?.();
      running.delete(name);
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

await test("as many run as there is room for, in their order", async () => {
  const { now, end, over } = start([..."abc"].map((name) => ({ name })));
  deepStrictEqual(now(), "a b");
  await end("a");
  deepStrictEqual(now(), "b c");
  await end("c");
  await end("b");
  await over;
});

await test("parts of processors add up", async () => {
  const { now } = start([..."abcd"].map((name) => ({ name, processors: 0.6 })));
  deepStrictEqual(now(), "a b c");
});

await test("nobody passes a large one that waits for room", async () => {
  const { now, end } = start([{ name: "a" }, { name: "large", processors: 8 }, { name: "b" }]);
  deepStrictEqual(now(), "a");
  await end("a");
  deepStrictEqual(now(), "large");
  await end("large");
  deepStrictEqual(now(), "b");
});

await test("what needs another begins after it, and keeps nobody else", async () => {
  const { now, end } = start([{ name: "a" }, { name: "b", needs: ["a"] }, { name: "c" }, { name: "d" }]);
  deepStrictEqual(now(), "a c");
  await end("a");
  deepStrictEqual(now(), "c b");
});

await test("what is not run is not waited for", async () => {
  deepStrictEqual(start([{ name: "a", needs: ["nobody"] }]).now(), "a");
});

await test("jobs that need each other are an error", async () => {
  const { over } = start([
    { name: "a", needs: ["b"] },
    { name: "b", needs: ["a"] },
  ]);
  await rejects(over, /need each other: a, b/);
});

await test("those that wait are spread among the others, and none is lost", async () => {
  const jobs = (/** @type {string} */ names, /** @type {number} */ processors) =>
    [...names].map((name) => ({ name, processors }));
  const order = (/** @type {string} */ others, /** @type {string} */ waiting) =>
    spread([...jobs(waiting, 0.5), ...jobs(others, 0.7)], 0.6)
      .map(({ name }) => name)
      .join("");
  deepStrictEqual([order("ABCD", "ab"), order("AB", "abcd")], ["AaBCbD", "AabBcd"]);
  deepStrictEqual([order("", "ab"), order("AB", "")], ["ab", "AB"]);
});

await test("the seconds of processors are those of a program and of what it waited for", async () => {
  const folder = mkdtempSync(join(tmpdir(), "side-by-side-"));
  const compute = "while (process.cpuUsage().user < 300_000);";
  const start = `require("node:child_process").spawnSync(process.execPath, ["-e", ${JSON.stringify(compute)}]);`;
  const took = [];
  for (const code of ["setTimeout(() => {}, 300)", compute, start]) {
    const { processorSeconds } = await run([process.execPath, "-e", code], { log: join(folder, "log") });
    took.push(processorSeconds);
  }
  const [idle = 0, busy = 0, parent = 0] = took;
  rmSync(folder, { recursive: true });
  ok(Math.min(busy, parent) >= 0.3, `${busy} s and ${parent} s, of which each computes for at least 0.3 s`);
  ok(idle < Math.min(busy, parent), `${idle} s of one that waits, ${busy} s of one that computes`);
});

score.end();

/** @param {string} name @param {() => Promise<void>} body */
async function test(name, body) {
  const problems = await body().then(
    () => [],
    (error) => [String(error)],
  );
  score.add(name, problems);
}

// Tests of scripts/side-by-side.mjs, which runs the suites of `npm test`: with jobs that end when they are told to.
//   node tests/side-by-side.mjs
import { deepStrictEqual, rejects } from "node:assert";
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

score.end();

/** @param {string} name @param {() => Promise<void>} body */
async function test(name, body) {
  const problems = await body().then(
    () => [],
    (error) => [String(error)],
  );
  score.add(name, problems);
}

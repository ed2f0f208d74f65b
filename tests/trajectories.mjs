// Tests of the playground's parts that need no page: reading trajectories, the state behind a view, and playing.
//   node tests/trajectories.mjs [--seed 1]
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { root } from "../scripts/project.mjs";
import { Player } from "../www/rlm/player.js";
import { segments } from "../www/rlm/reply.js";
import { State } from "../www/rlm/state.js";
import { Recorder, problemOf, readTrajectory } from "../www/rlm/trajectory.js";
import { hostileTrajectory, longTrajectory } from "./e2e/playground-trajectories.mjs";
import { randomness } from "./e2e/tools.js";

/** @typedef {import("../www/rlm/state.js").RunEvent} RunEvent */

const { values } = parseArgs({ options: { seed: { type: "string", default: "1" } } });
const dice = randomness(Number(values.seed));
const random = (/** @type {number} */ below) => Math.floor(dice() * below);
/** @template T @param {T[]} list @returns {T} */
const any = (list) => list[random(list.length)];

const read = (/** @type {string} */ text) => readTrajectory(new Blob([text]));
const isLive = (/** @type {RunEvent} */ { type }) => type === "text" || type === "output";
const sample = await read(await readFile(join(root, "www/sample-run.jsonl"), "utf8"));

/** @param {RunEvent[]} events */
function stateOf(events) {
  const state = new State();
  for (const event of events) state.apply(event);
  return state;
}

/** The view of a run, without live output. @param {State} state @param {string} id */
function seen(state, id) {
  const run = state.runs.get(id);
  const plain = (/** @type {string} */ key, /** @type {unknown} */ value) =>
    ["parent", "children", "revision", "live", "liveChars", "startedAt"].includes(key) ? undefined : value;
  return JSON.stringify({ ...run, calls: [...(run?.calls.values() ?? [])].map(({ call }) => call) }, plain);
}

/** @type {Record<string, () => void | Promise<void>>} */
const TESTS = {
  "the sample is whole: five runs, each with its turns and its answer": () => {
    const state = stateOf(sample);
    equal([...state.runs.keys()].sort(), ["0", "0.0", "0.1", "0.2", "0.3"]);
    for (const run of state.runs.values())
      equal([run.status, run.turns.length > 1, typeof run.answer], ["answered", true, "string"]);
    equal(
      state.runs.get("0")?.children.map(({ id }) => id),
      ["0.0", "0.1", "0.2", "0.3"],
    );
  },

  "what is added up from calls and turns is what each run says that it has spent": () => {
    const state = stateOf(sample);
    for (const event of sample) {
      if (event.type === "runEnded") equal(state.runs.get(event.run)?.usage, event.usage);
    }
  },

  "it looks the same without live events": () => {
    const [whole, bare] = [stateOf(sample), stateOf(sample.filter((event) => !isLive(event)))];
    for (const id of whole.runs.keys()) equal(seen(bare, id), seen(whole, id));
  },

  "runs at the same time may come in any order": () => {
    const whole = stateOf(sample);
    for (let round = 0; round < 50; round++) equal(...viewsOfBoth(whole, stateOf(interleave(sample))));
  },

  "a trajectory survives being written, and a last line that is cut off": async () => {
    const lines = sample.map((event) => JSON.stringify(event)).join("\n");
    equal(await read(lines), sample);
    equal((await read(lines.slice(0, -20))).length, sample.length - 1);
  },

  "pieces are recorded as fewer, with nothing lost": () => {
    const recorder = new Recorder();
    const start = /** @type {RunEvent} */ (sample[0]);
    recorder.add(start);
    const pieces = Array.from({ length: 500 }, (_, n) => `${n} `);
    pieces.forEach((text, n) => {
      for (const run of ["0", "0.0"]) recorder.add(event(run, 2 * n, { type: "text", text: run + text }));
    });
    recorder.add(event("0", 2000, { type: "output", stream: "stderr", text: "x" }));
    for (const run of ["0", "0.0"]) {
      const texts = recorder.events.map((it) => (it.type === "text" && it.run === run ? it.text : ""));
      equal(texts.join(""), pieces.map((text) => run + text).join(""));
    }
    equal(recorder.events.length < 50, true);
    for (let n = 0; n < 100; n++)
      recorder.add(event("0", 3000 + n * 200, { type: "output", stream: "stdout", text: "y".repeat(10_000) }));
    equal(JSON.stringify(recorder.events).length < 300_000, true);
  },

  "whatever a line holds, it is refused or can be shown": () => {
    const junk = [
      null,
      undefined,
      -1,
      1e308,
      "",
      "0.9.9",
      "<b>",
      [],
      {},
      true,
      { length: -1 },
      [null],
      "__proto__",
      "constructor",
    ];
    const good = [
      ...sample,
      ...hostileTrajectory("<b>")
        .trim()
        .split("\n")
        .map((line) => JSON.parse(line)),
    ];
    let refused = 0;
    for (let round = 0; round < 20_000; round++) {
      const broken = structuredClone(any(good));
      const spot = any(places(broken));
      if (random(4) === 0) delete spot.of[spot.key];
      else spot.of[spot.key] = any(junk);
      if (problemOf(broken)) refused++;
      else stateOf([.../** @type {RunEvent[]} */ (good).slice(0, random(good.length)), broken]);
    }
    equal(refused > 5_000, true);
  },

  "a hostile and a long trajectory are read": async () => {
    equal(stateOf(await read(hostileTrajectory("<b>"))).runs.size, 3);
    equal(stateOf(await read(longTrajectory())).runs.size, 201);
  },

  "a player shows every event once, whatever is done to it": () => {
    for (let round = 0; round < 200; round++) {
      const player = new Player(sample, random(sample.length + 1));
      let shown = /** @type {RunEvent[]} */ ([]);
      const drain = () => {
        for (let next; (next = player.next());) shown.push(next);
      };
      for (let step = 0; step < 30; step++) {
        const act = random(4);
        if (act === 0 && player.seek(random(sample.length + 1))) shown = [];
        if (act === 1) player.play();
        if (act === 2) player.pause();
        player.tick(random(500));
        drain();
        equal(shown.length, player.position);
        equal(shown, sample.slice(0, shown.length));
      }
    }
  },

  "playing takes no longer than the run did, and comes to an end": () => {
    const player = new Player(sample, 0);
    player.play();
    let frames = 0;
    for (; player.active && frames < 100_000; frames++) {
      player.tick(16);
      while (player.next());
    }
    equal(player.position, sample.length);
    equal(16 * frames <= Number(sample.at(-1)?.time) + 100, true);
  },

  "a reply is taken apart as it comes": () => {
    for (const [reply, expected] of /** @type {[string, string[]][]} */ ([
      ["", []],
      ["hello", ["prose hello"]],
      [
        "so:\n```repl\nx = 1\n\ny\n```\nand\n~~~python\nz\n~~~\nend",
        ["prose so:", "code x = 1\n\ny", "prose and", "code z", "prose end"],
      ],
      ["so:\n```repl\nx = 1\nprint(", ["prose so:", "code x = 1\nprint("]],
      ["so:\n```re", ["prose so:\n```re"]],
      ["```json\n{}\n```", ["prose ```json\n{}\n```"]],
      ["````repl\nx = '''\n```\n'''\n````", ["code x = '''\n```\n'''"]],
      ["```repl\n\n```", []],
      ["inline ```repl x``` code", ["prose inline ```repl x``` code"]],
    ])) {
      equal(
        segments(reply).map(({ kind, text }) => `${kind} ${text}`),
        expected,
      );
    }
  },
};

let failed = 0;
for (const [name, test] of Object.entries(TESTS)) {
  try {
    await test();
  } catch (error) {
    failed++;
    console.log(`✗ ${name} (seed ${values.seed})\n    ${/** @type {Error} */ (error).stack?.slice(0, 1500)}`);
  }
}
console.log(`${Object.keys(TESTS).length - failed} passed, ${failed} failed, 0 skipped`);
process.exitCode = failed ? 1 : 0;

/** @param {unknown} actual @param {unknown} expected */
function equal(actual, expected) {
  const [a, b] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${a?.slice(0, 500)}\n    is not\n    ${b?.slice(0, 500)}`);
}

/** The views of all runs in two states. @param {State} one @param {State} other @returns {[string[], string[]]} */
function viewsOfBoth(one, other) {
  const ids = [...one.runs.keys()].sort();
  return [ids.map((id) => seen(other, id)), ids.map((id) => seen(one, id))];
}

/** @param {string} run @param {number} time @param {object} fields */
function event(run, time, fields) {
  return /** @type {RunEvent} */ ({ run, depth: run.split(".").length - 1, time, ...fields });
}

/** Mixes the events of the runs. Each run keeps its order, and begins after the call that starts it. @param {RunEvent[]} events */
function interleave(events) {
  /** @type {Map<string, RunEvent[]>} */
  const queues = new Map(events.map(({ run }) => [run, events.filter((event) => event.run === run)]));
  const begun = new Set(["0"]);
  const ended = new Set();
  /** @type {RunEvent[]} */
  const mixed = [];
  while (mixed.length < events.length) {
    const ready = [...queues]
      .filter(([run, queue]) => begun.has(run) && queue.length > 0)
      .filter(([, [next]]) => !waits(next));
    const next = /** @type {RunEvent} */ (any(ready)[1].shift());
    mixed.push(next);
    if (next.type === "callStarted" && next.child) begun.add(next.child);
    if (next.type === "runEnded") ended.add(next.run);
  }
  return mixed;

  /** Returns true for the answer to a call whose run has not ended yet. @param {RunEvent} next */
  function waits(next) {
    if (next.type !== "callEnded") return false;
    const child = events.find((it) => it.type === "callStarted" && it.run === next.run && it.call === next.call);
    return child?.type === "callStarted" && child.child !== undefined && !ended.has(child.child);
  }
}

/** All places in a value where another value could stand. @param {any} value @returns {{ of: any, key: string }[]} */
function places(value) {
  if (typeof value !== "object" || value === null) return [];
  return Object.keys(value).flatMap((key) => [{ of: value, key }, ...places(value[key])]);
}

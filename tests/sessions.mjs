// The recordings in tests/sessions/ are well-formed: what was run is what their replies say, in order. Those over DataFrames name
// packages that are installed for them.
//   node tests/sessions.mjs
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { basename, join } from "node:path";
import * as dataframes from "../scripts/bench/dataframes.mjs";
import { root } from "../scripts/project.mjs";
import { segments } from "../www/rlm/reply.js";

const folder = join(root, "tests/sessions");
const files = readdirSync(folder).filter((file) => file.endsWith(".json"));
const heldOut = thirdOf(files.map((file) => basename(file, ".json")));
const overFrames = dataframes.sessions();
let failed = 0;
for (const file of files)
  attempt(file, () => check(basename(file, ".json"), JSON.parse(readFileSync(join(folder, file), "utf8"))));
for (const session of overFrames) attempt(session.name, () => checkFrames(session));
if (files.length === 0 || overFrames.length === 0) throw new Error(`no recordings in ${folder}`);
console.log(`${files.length + overFrames.length - failed} passed, ${failed} failed, 0 skipped`);
process.exitCode = failed ? 1 : 0;

/** @param {string} name @param {() => void} test */
function attempt(name, test) {
  try {
    test();
  } catch (error) {
    failed++;
    console.log(`✗ ${name}: ${/** @type {Error} */ (error).message}`);
  }
}

/** @param {any} session */
function checkFrames(session) {
  const { name, style, task, data, turns, answer } = session;
  keys(session, ["name", "purpose", "style", "task", "data", "turns", "answer"]);
  keys(data, ["package", "version", "licence"]);
  must(session.purpose === "reporting", "nothing is tuned on these");
  must(["agent", "notebook"].includes(style), `its style is ${style}`);
  for (const text of [name, task, data.licence, answer]) must(typeof text === "string" && text !== "", "an empty text");
  must(dataframes.packages().includes(`${data.package}==${data.version}`), "its data is not installed");
  must(turns.length >= 15 && turns.length <= 40, `${turns.length} turns`);
  turns.forEach((/** @type {any} */ turn, /** @type {number} */ index) => {
    keys(turn, ["reply", "code", "outcome", "durationMs"]);
    const blocks = segments(turn.reply).filter(({ kind }) => kind === "code");
    must(blocks.length === 1 && blocks[0]?.text === turn.code, `the code of turn ${index + 1} is not its block`);
    must(["ok", "error"].includes(turn.outcome), `the outcome of turn ${index + 1} is ${turn.outcome}`);
    must(Number.isFinite(turn.durationMs) && turn.durationMs > 0, "durationMs is no time");
    must(style === "agent" || turn.reply.startsWith("```"), `turn ${index + 1} of a notebook has prose`);
  });
}

/** @param {string} name @param {any} session */
function check(name, session) {
  const { data, turns } = session;
  keys(session, ["name", "purpose", "task", "data", "turns", "answer"]);
  keys(data, ["package", "version", "file", "licence", "sha256", "bytes"]);
  must(session.name === name, "its name is not that of the file");
  const purpose = heldOut.has(name) ? "reporting" : "tuning";
  must(session.purpose === purpose, `its purpose is to be ${purpose}, by the hash of its name`);
  for (const text of [session.task, data.package, data.version, data.file, data.licence])
    must(typeof text === "string" && text !== "", "an empty text");
  must(/^[0-9a-f]{64}$/.test(data.sha256), "sha256 is no hash");
  must(Number.isInteger(data.bytes) && data.bytes > 0, "bytes is no size");
  must(session.answer !== undefined && session.answer !== null && session.answer !== "", "no answer");
  must(Array.isArray(turns) && turns.length >= 2, "fewer than two turns");
  turns.forEach((/** @type {any} */ turn, /** @type {number} */ index) => {
    try {
      checkTurn(turn, index === turns.length - 1);
    } catch (error) {
      throw new Error(`turn ${index + 1}: ${/** @type {Error} */ (error).message}`);
    }
  });
}

/** @param {any} turn @param {boolean} isLast */
function checkTurn(turn, isLast) {
  keys(turn, ["reply", "executions", "calls"]);
  const blocks = segments(turn.reply).filter(({ kind }) => kind === "code");
  const { executions, calls } = turn;
  must(executions.length > 0, "nothing was run");
  for (const execution of executions) {
    keys(execution, ["code", "outcome", "durationMs"]);
    must(["ok", "error", "timeout"].includes(execution.outcome), `outcome is ${execution.outcome}`);
    must(Number.isFinite(execution.durationMs) && execution.durationMs > 0, "durationMs is no time");
  }
  // What stands after a block that failed, or after the answer, was not run.
  const last = executions.at(-1);
  const stopped = last.outcome !== "ok" || isLast;
  must(
    executions.slice(0, -1).every((/** @type {any} */ it) => it.outcome === "ok"),
    "it went on after a failure",
  );
  must(executions.length === blocks.length || (stopped && executions.length < blocks.length), "not as many as blocks");
  const declares = last.outcome === "ok" && /\bFINAL(_VAR)?\(/.test(last.code);
  must(declares === isLast, isLast ? "no answer is declared" : "it went on after the answer");
  executions.forEach((/** @type {any} */ { code }, /** @type {number} */ index) =>
    must(code === blocks[index]?.text, `execution ${index + 1} is not its block:\n${code}`),
  );
  for (const call of calls) {
    keys(call, ["execution", "prompt", "promptChars", "answer"]);
    must(Number.isInteger(call.execution) && call.execution < executions.length, "a call of no execution");
    must(/llm_query/.test(executions[call.execution].code), "a call from code that makes none");
    must(call.prompt.length > 0 && call.prompt.length <= call.promptChars, "a prompt longer than itself");
    must(call.answer.length > 0, "an empty answer");
  }
}

/** The third of the names with the smallest SHA-256. @param {string[]} names */
function thirdOf(names) {
  const hash = (/** @type {string} */ name) => createHash("sha256").update(name).digest("hex");
  const sorted = names.map((name) => ({ name, hash: hash(name) })).sort((a, b) => (a.hash < b.hash ? -1 : 1));
  return new Set(sorted.slice(0, Math.round(names.length / 3)).map(({ name }) => name));
}

/** @param {object} value @param {string[]} expected */
function keys(value, expected) {
  must(String(Object.keys(value)) === String(expected), `keys are ${Object.keys(value)}, not ${expected}`);
}

/** @param {unknown} holds @param {string} problem */
function must(holds, problem) {
  if (!holds) throw new Error(problem);
}

// Trajectories as files: JSON lines, one event each. A file may come from anybody, so every line is checked before any is shown.

import { Slices } from "../slices.js";

/** @import { RunEvent } from "./state.js" */

/** Largest file that a browser tab shows well. */
const MAX_BYTES = 128 << 20;
/** Time within which live events are merged into one. */
const MERGE_MS = 100;
/** Bound of the live output kept of one block; its execution has the beginning and the end. */
const MAX_PRINTED_CHARS = 200_000;

/** @typedef {(value: unknown) => boolean} Check */

const text = (/** @type {unknown} */ value) => typeof value === "string";
const number = (/** @type {unknown} */ value) => typeof value === "number" && Number.isFinite(value);
const whole = (/** @type {unknown} */ value) => Number.isInteger(value) && Number(value) >= 0;
const flag = (/** @type {unknown} */ value) => typeof value === "boolean";
const anything = () => true;
const maybe = (/** @type {Check} */ check) => (/** @type {unknown} */ value) => value === undefined || check(value);
const list = (/** @type {Check} */ check) => (/** @type {unknown} */ value) =>
  Array.isArray(value) && value.every(check);
const oneOf =
  (/** @type {string[]} */ ...names) =>
  (/** @type {unknown} */ value) =>
    names.includes(String(value));
/** @param {Record<string, Check>} fields */
const object = (fields) => (/** @type {unknown} */ value) =>
  typeof value === "object" &&
  value !== null &&
  Object.entries(fields).every(([name, check]) => check(Reflect.get(value, name)));

const usage = object({
  calls: maybe(number),
  inputTokens: maybe(number),
  outputTokens: maybe(number),
  cost: maybe(number),
});
const left = object({ calls: maybe(number), tokens: maybe(number), cost: maybe(number), time: maybe(number) });
const facts = object({ name: text, type: text, length: maybe(number), unit: maybe(text), peek: maybe(text) });
const runId = (/** @type {unknown} */ value) => /^0(\.\d{1,6}){0,16}$/.test(String(value));
const lost = object({ name: text, reason: text });
const display = object({ mime: text, data: text });
const execution = object({
  id: whole,
  stdout: text,
  stderr: text,
  error: maybe(text),
  traceback: maybe(text),
  result: maybe(text),
  duration: number,
  guestTime: number,
  outcome: oneOf("ok", "error", "timeout", "interrupted", "crashed", "limit"),
  state: object({ status: oneOf("kept", "restored", "lost"), restoredTo: maybe(whole), lost: maybe(list(lost)) }),
  truncated: object({ stdout: number, stderr: number }),
  hostCalls: whole,
  displays: maybe(list(display)),
});

/** The required fields of each type of event. @type {Record<string, Record<string, Check>>} */
const EVENTS = {
  runStarted: { version: whole, task: text, contexts: list(facts), maxIterations: whole, maxDepth: whole },
  turnStarted: { turn: whole, of: whole, messages: whole, promptTokens: number, left },
  historyCompacted: { before: number, after: number, turns: whole },
  modelReplied: { turn: whole, text, usage, estimated: flag, cut: flag, duration: number },
  retry: { call: maybe(whole), attempt: whole, wait: number, reason: text },
  codeStarted: { turn: whole, block: whole, blocks: whole, code: text },
  executionEnded: { turn: whole, block: whole, execution, declared: flag },
  callStarted: { call: whole, name: text, prompt: text, promptChars: number, model: maybe(text), child: maybe(runId) },
  callEnded: { call: whole, answer: maybe(text), error: maybe(text), usage: maybe(usage), duration: number },
  budget: { spent: usage, left },
  answerRejected: { problems: text },
  runEnded: {
    outcome: oneOf("answered", "exhausted", "limit", "aborted", "failed"),
    answer: anything,
    error: maybe(text),
    iterations: whole,
    usage,
    duration: number,
  },
  text: { text },
  output: { stream: oneOf("stdout", "stderr"), text },
};

/** The fault of an event, or undefined if it has none. @param {unknown} event */
export function problemOf(event) {
  const { type, run, time } = /** @type {Partial<RunEvent>} */ (event ?? {});
  const fields = Object.hasOwn(EVENTS, String(type)) && EVENTS[String(type)];
  if (!fields) return "it is no event of a run";
  if (!runId(run)) return "its run has no name such as 0.1";
  if (!number(time)) return "it has no time";
  const wrong = Object.entries(fields).find(
    ([name, check]) => !check(Reflect.get(/** @type {object} */ (event), name)),
  );
  return wrong && `its ${wrong[0]} is not what ${type} has there`;
}

/**
 * Reads a trajectory without blocking the page. An incomplete last line is left out.
 * @param {Blob} file
 * @returns {Promise<RunEvent[]>}
 */
export async function readTrajectory(file) {
  if (file.size > MAX_BYTES) throw new Error("a trajectory of more than 128 MB is not opened here");
  const lines = (await file.text()).split("\n");
  /** @type {RunEvent[]} */
  const events = [];
  const slices = new Slices();
  for (const [index, line] of lines.entries()) {
    if (!line.trim()) continue;
    let event;
    try {
      event = JSON.parse(line);
    } catch {
      if (index === lines.length - 1 && events.length > 0) break;
      throw new Error(`line ${index + 1} is not JSON: a trajectory has one event per line`);
    }
    const problem = problemOf(event);
    if (problem) throw new Error(`line ${index + 1} cannot be shown: ${problem}`);
    events.push(event);
    if (slices.isOver) await slices.next();
  }
  const [first] = events;
  if (first?.type !== "runStarted") throw new Error("it does not begin with the start of a run");
  if (first.version !== 1) throw new Error(`it is of version ${first.version}; this page reads version 1`);
  return events;
}

/** Events as JSON lines. @param {RunEvent[]} events */
export function toBlob(events) {
  return new Blob(
    events.map((event) => `${JSON.stringify(event)}\n`),
    { type: "application/jsonl" },
  );
}

/** @typedef {Extract<RunEvent, { type: "text" | "output" }>} LiveEvent */

/** Records events. Small pieces of text and output are merged into larger ones. */
export class Recorder {
  /** @type {RunEvent[]} */
  events = [];
  /** The last event of each run, if it is a live event. @type {Map<string, LiveEvent>} */
  #live = new Map();
  /** Characters that the running block of each run has printed. @type {Map<string, number>} */
  #printed = new Map();

  /** @param {RunEvent} event */
  add(event) {
    if (event.type === "codeStarted") this.#printed.set(event.run, 0);
    if (event.type === "output") {
      const printed = this.#printed.get(event.run) ?? 0;
      if (printed > MAX_PRINTED_CHARS) return;
      this.#printed.set(event.run, printed + event.text.length);
    }
    const last = this.#live.get(event.run);
    if (last && isMore(last, event)) {
      return void (last.text += event.text);
    }
    this.#live.delete(event.run);
    const kept = { ...event };
    if (kept.type === "text" || kept.type === "output") this.#live.set(kept.run, kept);
    this.events.push(kept);
  }
}

/** @param {LiveEvent} last @param {RunEvent} event @returns {event is LiveEvent} */
function isMore(last, event) {
  if (event.time - last.time > MERGE_MS) return false;
  if (last.type === "output") return event.type === "output" && event.stream === last.stream;
  return event.type === "text";
}

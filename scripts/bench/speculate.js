// Replays recorded sessions of a controller in the page, in real time. scripts/bench-speculate.mjs describes the ways,
// and prints the results.

import { createSandbox } from "../../pyodide-glue/index.js";

/** @import { Sandbox, Source, Tally } from "../../pkg/sandglass.js" */
/** @typedef {{ reply: string, executions: { code: string, outcome: string }[], calls?: { answer: string }[], candidates: string[] }} Turn */
/** @typedef {{ think: number, charsPerSecond: number, answer: number }} Pace  milliseconds, and how fast a reply is written */
/** @typedef {"none" | "list" | "templates" | "hints" | "stream" | "five" | "oracle"} Way */
/**
 * One execution: the wait for it after its reply was complete, and the code's own duration, in milliseconds.
 * @typedef {{ latency: number, duration: number, outcome: string, served: boolean, saved: number }} Operation
 */

/** Code to try without any knowledge of the session but the name of its variable. */
const LIST = ["print(len(context))", "print(type(context))", "print(context[:500])", "print(context[:1000])"];
/** The characters of a token. A reply grows token by token, and its end is a token too. */
const TOKEN = 4;

const wait = (/** @type {number} */ ms) => new Promise((resolve) => setTimeout(resolve, ms));

/**
 * @param {{ turns: Turn[] }} session
 * @param {string} context  the address of its text
 * @param {Way} way
 * @param {Pace} pace
 */
async function replay(session, context, way, pace) {
  const answers = session.turns.flatMap(({ calls }) => calls ?? []).map(({ answer }) => answer);
  const answer = async () => (await wait(pace.answer), answers.shift() ?? "");
  const sandbox = await createSandbox({
    onLLMQuery: answer,
    timeout: 120_000,
    predictions: way === "templates" ? "auto" : "off",
  });
  /** @type {Operation[]} */
  const operations = [];
  try {
    await sandbox.initialize(await (await fetch(context)).text());
    await sandbox.execute("1");
    for (const turn of session.turns) {
      const first = turn.executions[0]?.code;
      if (way === "list") void sandbox.hint(LIST);
      if (way === "five" && first) void sandbox.hint(turn.candidates);
      if (way === "oracle" && first) void sandbox.hint(first);
      let before = tallies(sandbox);
      await wait(pace.think);
      const running = await write(sandbox, turn, way, pace);
      for (const [index, { code }] of turn.executions.entries()) {
        const arrived = performance.now();
        const run = await (index === 0 && running ? running.finish() : sandbox.execute(code));
        const latency = performance.now() - arrived;
        const after = tallies(sandbox);
        const served = after.used > before.used;
        const saved = served ? Math.min(after.saved - before.saved, run.duration) : 0;
        before = after;
        operations.push({ latency, duration: run.duration, outcome: run.outcome, served, saved });
      }
    }
    return { operations, ahead: tallies(sandbox) };
  } finally {
    await sandbox.destroy();
  }
}

/**
 * Writes a reply as a model would, and tells the sandbox as much as the way allows.
 * @param {Sandbox} sandbox @param {Turn} turn @param {Way} way @param {Pace} pace
 */
async function write(sandbox, { reply, executions }, way, { charsPerSecond }) {
  const first = executions[0]?.code ?? "";
  const code = reply.includes(first) ? first : ""; // an indented fence does not begin the code
  const begin = reply.indexOf(code);
  const end = begin + code.length;
  const lines = end + (reply[end] === "\n" ? 1 : 0); // the end of the block, whose fence comes next
  const tokenMs = (1000 * TOKEN) / charsPerSecond;
  const all = Math.ceil(reply.length / TOKEN) + 1;
  const began = performance.now();
  /** @type {ReturnType<typeof stream> | undefined} */
  let running;
  let [tokens, written, hinted] = [0, 0, false];
  while (tokens < all) {
    await wait(began + (tokens + 1) * tokenMs - performance.now());
    const before = written;
    tokens = Math.min(all, Math.floor((performance.now() - began) / tokenMs));
    written = Math.min(reply.length, tokens * TOKEN);
    if (way === "stream" && code && written > begin) {
      running ??= stream(sandbox);
      running.push(reply.slice(Math.max(before, begin), Math.min(written, lines)));
    }
    const isLine = reply.slice(before, written).includes("\n"); // runRlm looks at whole lines
    if (way === "templates" && written < begin && isLine) void sandbox.updateConversation(reply.slice(0, written));
    // The end of the block is reported as well, as runRlm does.
    if ((way === "hints" || way === "stream") && code && !hinted && written >= end + "\n```".length) {
      hinted = true;
      void sandbox.hint(way === "stream" ? reply.slice(begin, lines) : code);
    }
  }
  return running;
}

/** Code that comes in pieces, and is complete when `finish` is called. @param {Sandbox} sandbox */
function stream(sandbox) {
  /** @type {ReadableStreamDefaultController<string> | undefined} */
  let pieces;
  const source = new ReadableStream({ start: (controller) => void (pieces = controller) });
  const run = sandbox.executeStream(source);
  return {
    /** @param {string} piece */
    push: (piece) => piece && pieces?.enqueue(piece),
    finish: () => (pieces?.close(), run),
  };
}

/** Sums the counts of code that ran ahead, over all sources. @param {Sandbox} sandbox */
function tallies(sandbox) {
  const sum = { started: 0, finished: 0, used: 0, wasted: 0, saved: 0, timeWasted: 0 };
  for (const tally of Object.values(sandbox.stats().ahead.code)) {
    for (const key of /** @type {const} */ (["started", "finished", "used", "wasted"])) sum[key] += tally[key];
    sum.saved += tally.timeSaved;
    sum.timeWasted += tally.timeWasted;
  }
  return sum;
}

Object.assign(window, { replay });

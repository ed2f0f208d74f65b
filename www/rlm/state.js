// What a run looks like, made of its events and of nothing else: so a recorded run looks as it did live.
//
// Every node has a `revision` that grows with each change of it or below it, by which views know what to draw again.

/** @import { CodeExecution, ContextFacts, RlmEventKind, RunOutcome, Usage } from "../../pkg/sandglass.js" */
/** @typedef {RlmEventKind & { run: string, depth: number, time: number }} RunEvent */
/** @typedef {{ calls?: number, tokens?: number, cost?: number, time?: number }} Limits  of the tree; `time` in milliseconds */
/** @typedef {{ stream: "stdout" | "stderr", text: string }} Piece */

/**
 * @typedef {object} Call
 * @property {number} revision
 * @property {number} number
 * @property {string} name
 * @property {string} prompt  its beginning and end
 * @property {number} promptChars
 * @property {string} [model]
 * @property {string} [child]  the run that it started
 * @property {"waiting" | "answered" | "failed"} status
 * @property {string} [answer]
 * @property {string} [error]
 * @property {number} [duration]
 * @property {string[]} retries
 */

/**
 * @typedef {object} Block
 * @property {number} revision
 * @property {number} number  from 1
 * @property {string} code
 * @property {number} startedAt
 * @property {Piece[]} live  what it printed so far
 * @property {number} liveChars
 * @property {CodeExecution} [execution]
 * @property {boolean} declared  whether it declared an answer
 * @property {Call[]} calls
 */

/**
 * @typedef {object} Turn
 * @property {number} revision
 * @property {number} number  from 1
 * @property {number} of
 * @property {number} promptTokens
 * @property {number} startedAt
 * @property {"asked" | "replied"} status
 * @property {string} text  of the reply, as far as it has come
 * @property {Usage} [usage]
 * @property {boolean} estimated
 * @property {boolean} cut
 * @property {number} [duration]  of the reply
 * @property {string[]} notes  retries, and what was done to the messages
 * @property {Block[]} blocks
 * @property {string} [rejected]  why its answer was not accepted
 */

/**
 * @typedef {object} Run
 * @property {number} revision
 * @property {string} id
 * @property {Run} [parent]
 * @property {Run[]} children
 * @property {number} depth
 * @property {"waiting" | "running" | RunOutcome} status
 * @property {string} task
 * @property {ContextFacts[]} contexts
 * @property {number} [maxIterations]
 * @property {number} [maxDepth]
 * @property {unknown} [answerSchema]
 * @property {number} startedAt
 * @property {number} [duration]
 * @property {Required<Usage>} usage  its own and its children's
 * @property {Turn[]} turns
 * @property {Map<number, { call: Call, block?: Block, turn?: Turn }>} calls
 * @property {string[]} notes  for the next turn
 * @property {unknown} [answer]
 * @property {string} [error]
 */

/** Of what a running block printed; its execution has the rest. */
const MAX_LIVE_CHARS = 200_000;

export class State {
  revision = 0;
  /** @type {Map<string, Run>} */
  runs = new Map();
  /** Events so far. */
  count = 0;
  /** Milliseconds from the beginning of the first run to the last event. */
  time = 0;
  /** @type {Limits} */
  limits = {};

  /** The first run. */
  get root() {
    return this.runs.get("0");
  }

  get isOver() {
    const status = this.root?.status ?? "running";
    return status !== "running" && status !== "waiting";
  }

  /** @param {RunEvent} event */
  apply(event) {
    this.count++;
    this.revision++;
    this.time = Math.max(this.time, event.time);
    const run = this.#run(event.run, event.time);
    touch(run);
    const change = /** @type {(state: State, run: Run, event: RunEvent) => void} */ (APPLY[event.type]);
    change?.(this, run, event);
  }

  /** @param {string} id @param {number} time @returns {Run} */
  #run(id, time) {
    const known = this.runs.get(id);
    if (known) return known;
    const dot = id.lastIndexOf(".");
    const parent = dot < 0 ? undefined : this.runs.get(id.slice(0, dot));
    /** @type {Run} */
    const run = {
      revision: 0,
      id,
      parent,
      children: [],
      depth: id.split(".").length - 1,
      status: "waiting",
      task: "",
      contexts: [],
      startedAt: time,
      usage: { calls: 0, inputTokens: 0, outputTokens: 0, cost: 0 },
      turns: [],
      calls: new Map(),
      notes: [],
    };
    parent?.children.push(run);
    this.runs.set(id, run);
    return run;
  }

  /** A run that waits for its sandbox. @param {string} id @param {string} task @param {number} time */
  expect(id, task, time) {
    const run = this.#run(id, time);
    run.task ||= task;
    touch(run);
  }
}

/**
 * What each event changes.
 * @type {{ [T in RlmEventKind["type"]]: (state: State, run: Run, event: RunEvent & { type: T }) => void }}
 */
const APPLY = {
  runStarted(_, run, { task, contexts, maxIterations, maxDepth, answerSchema, time }) {
    Object.assign(run, { status: "running", task, contexts, maxIterations, maxDepth, answerSchema, startedAt: time });
  },

  turnStarted(state, run, { turn, of, promptTokens, left, time }) {
    // A turn is a call of a model, as each query is.
    charge(run, { calls: 1 });
    // What is left and what was spent at the beginning are what there is.
    if (run.id === "0" && turn === 1) {
      const { calls, tokens, cost } = left;
      const whole = left.time === undefined ? undefined : Math.round((left.time + time) / 100) * 100;
      state.limits = { calls: calls === undefined ? undefined : calls + 1, tokens, cost, time: whole };
    }
    run.turns.push({
      revision: 1,
      number: turn,
      of,
      promptTokens,
      startedAt: time,
      status: "asked",
      text: "",
      estimated: false,
      cut: false,
      notes: run.notes,
      blocks: [],
    });
    run.notes = [];
  },

  historyCompacted(_, run, { before, after, turns }) {
    run.notes.push(`older turns were shortened (${turns}): about ${before} tokens became ${after}`);
  },

  text(_, run, { text }) {
    const turn = lastTurn(run);
    if (turn?.status !== "asked") return;
    turn.text += text;
    turn.revision++;
  },

  modelReplied(_, run, { text, usage, estimated, cut, duration }) {
    charge(run, { ...usage, calls: 0 });
    const turn = lastTurn(run);
    if (!turn) return;
    Object.assign(turn, { status: "replied", text, usage, estimated, cut, duration });
    turn.revision++;
  },

  retry(_, run, { call, attempt, wait, reason }) {
    const note = `attempt ${attempt} failed: ${reason}; again in ${(wait / 1000).toFixed(1)} s`;
    if (call !== undefined) return changeCall(run, call, (call) => call.retries.push(note));
    const turn = lastTurn(run);
    if (!turn) return;
    turn.text = "";
    turn.notes.push(note);
    turn.revision++;
  },

  codeStarted(_, run, { block, code, time }) {
    const turn = lastTurn(run);
    if (!turn) return;
    turn.revision++;
    turn.blocks.push({
      revision: 1,
      number: block,
      code,
      startedAt: time,
      live: [],
      liveChars: 0,
      declared: false,
      calls: [],
    });
  },

  output(_, run, { stream, text }) {
    const turn = lastTurn(run);
    const block = turn?.blocks.at(-1);
    if (!turn || !block || block.execution || block.liveChars > MAX_LIVE_CHARS) return;
    block.live.push({ stream: stream === "stderr" ? "stderr" : "stdout", text: text.slice(0, MAX_LIVE_CHARS) });
    block.liveChars += text.length;
    block.revision++;
    turn.revision++;
  },

  executionEnded(_, run, { block: number, execution, declared }) {
    const turn = lastTurn(run);
    const block = turn?.blocks.findLast((block) => block.number === number);
    if (!turn || !block) return;
    Object.assign(block, { execution, declared });
    block.revision++;
    turn.revision++;
  },

  callStarted(state, run, { call: number, name, prompt, promptChars, model, child, time }) {
    /** @type {Call} */
    const call = { revision: 1, number, name, prompt, promptChars, model, child, status: "waiting", retries: [] };
    const turn = lastTurn(run);
    const block = turn?.blocks.at(-1);
    block?.calls.push(call);
    run.calls.set(number, { call, block, turn });
    for (const node of [block, turn]) if (node) node.revision++;
    charge(run, { calls: 1 });
    if (child !== undefined) state.expect(child, prompt, time);
  },

  callEnded(_, run, { call: number, answer, error, usage, duration }) {
    charge(run, { ...usage, calls: 0 });
    changeCall(run, number, (call) => {
      Object.assign(call, { status: answer === undefined ? "failed" : "answered", answer, error, duration });
    });
  },

  // What is spent is added up from the calls and turns, which come sooner.
  budget() {},

  answerRejected(_, run, { problems }) {
    const turn = lastTurn(run);
    if (!turn) return;
    turn.rejected = problems;
    turn.revision++;
  },

  runEnded(_, run, { outcome, answer, error, duration }) {
    Object.assign(run, { status: outcome, answer, error, duration });
  },
};

/** @param {Run} run */
const lastTurn = (run) => run.turns.at(-1);

/** Marks a run and all that it belongs to as changed. @param {Run | undefined} run */
function touch(run) {
  for (; run; run = run.parent) run.revision++;
}

/** @param {Run | undefined} run @param {Usage} usage */
function charge(run, { calls = 0, inputTokens = 0, outputTokens = 0, cost = 0 }) {
  for (; run; run = run.parent) {
    run.usage.calls += calls;
    run.usage.inputTokens += inputTokens;
    run.usage.outputTokens += outputTokens;
    run.usage.cost += cost;
  }
}

/** @param {Run} run @param {number} number @param {(call: Call) => void} change */
function changeCall(run, number, change) {
  const known = run.calls.get(number);
  if (!known) return;
  change(known.call);
  for (const node of [known.call, known.block, known.turn]) if (node) node.revision++;
}

// The state of a tree of runs for the views, made from events alone. So a recorded run looks as it did live.
//
// Every node has a `revision`. It grows with each change of the node or of a node below it, so views know what to draw again.

/** @import { CodeExecution, ContextFacts, RlmEventKind, RunOutcome, Usage } from "../../pkg/sandglass.js" */
/** @typedef {RlmEventKind & { run: string, depth: number, time: number }} RunEvent */
/** @typedef {{ calls?: number, tokens?: number, cost?: number, time?: number }} Limits  of the tree; `time` is in ms */
/** @typedef {{ stream: "stdout" | "stderr", text: string }} Piece */

/**
 * @typedef {object} Call
 * @property {number} revision
 * @property {number} number
 * @property {string} name
 * @property {string} prompt  the prompt's beginning and end
 * @property {number} promptChars
 * @property {string} [model]
 * @property {string} [child]  id of the run that the call started
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
 * @property {Piece[]} live  output so far
 * @property {number} liveChars
 * @property {CodeExecution} [execution]
 * @property {boolean} declared  true if the block declared an answer
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
 * @property {string} text  the reply so far
 * @property {Usage} [usage]
 * @property {boolean} estimated
 * @property {boolean} cut
 * @property {number} [duration]  time until the reply was complete
 * @property {string[]} notes  retries, and changes to the messages
 * @property {Block[]} blocks
 * @property {Call[]} ahead  calls that began before their block
 * @property {string} [rejected]  the reason for which the answer was not accepted
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
 * @property {Required<Usage>} usage  the sum of the run and its children
 * @property {Turn[]} turns
 * @property {Map<number, { call: Call, block?: Block, turn?: Turn }>} calls
 * @property {string[]} notes  for the next turn
 * @property {unknown} [answer]
 * @property {string} [error]
 */

/** Bound of the live output of one block; its execution has the rest. */
const MAX_LIVE_CHARS = 200_000;

/** All runs of a tree. `apply` takes its events in their order. */
export class State {
  revision = 0;
  /** @type {Map<string, Run>} */
  runs = new Map();
  /** The number of events so far. */
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

  /** Adds a run that waits for its sandbox. @param {string} id @param {string} task @param {number} time */
  expect(id, task, time) {
    const run = this.#run(id, time);
    run.task ||= task;
    touch(run);
  }
}

/**
 * The change that each type of event makes.
 * @type {{ [T in RlmEventKind["type"]]: (state: State, run: Run, event: RunEvent & { type: T }) => void }}
 */
const APPLY = {
  runStarted(_, run, { task, contexts, maxIterations, maxDepth, answerSchema, time }) {
    Object.assign(run, { status: "running", task, contexts, maxIterations, maxDepth, answerSchema, startedAt: time });
  },

  turnStarted(state, run, { turn, of, promptTokens, left, time }) {
    // Each turn is one call of a model, and so is each query.
    charge(run, { calls: 1 });
    // The limits are what is left in the first turn plus what was spent before it.
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
      ahead: [],
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
      calls: turn.ahead.splice(0),
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

  callStarted(state, run, { call: number, name, prompt, promptChars, model, child, ahead, time }) {
    /** @type {Call} */
    const call = { revision: 1, number, name, prompt, promptChars, model, child, status: "waiting", retries: [] };
    const turn = lastTurn(run);
    const block = turn?.blocks.at(-1);
    if (ahead)
      turn?.ahead.push(call); // its block begins later
    else block?.calls.push(call);
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

  // Ignored: spending is added up from calls and turns, whose events come sooner.
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

/** Marks a run and its ancestors as changed. @param {Run | undefined} run */
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

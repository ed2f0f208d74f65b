// One run of one contestant, and what is measured of it.
import { CONVENTIONS, codeOf } from "./policies.mjs";
import { family, inGroups, ownMegabytes } from "../../processes.mjs";

/** @import { Contestant, Order, Outcome, Running } from "./contestants.mjs" */
/** @import { Behaviour, Call } from "./model.mjs" */
/** @import { Task } from "./tasks.mjs" */

/**
 * A run's figures. Times are in seconds, tokens count prompts and replies.
 * @typedef {object} Row
 * @property {string} contestant
 * @property {string} scenario
 * @property {string} kind
 * @property {number} seed
 * @property {number} tokens  of the context
 * @property {number} score  from 0 to 1
 * @property {string} [answer]
 * @property {string} [error]
 * @property {number} wall
 * @property {number} model  the critical path of the model's own latency
 * @property {number} turns
 * @property {number} rootCalls
 * @property {number} subCalls
 * @property {number} rootTokens
 * @property {number} subTokens
 * @property {number} lost  sub-calls that never got an answer
 * @property {number} doubled  sub-calls that got more than one
 * @property {number} late  calls after the outcome
 * @property {number} first  seconds until the first call; infinite if there was none
 * @property {number} begun  calls that began before their code was asked for
 * @property {number} wasted  those of them that no code made
 * @property {number} broke  replies whose code ended in the middle
 * @property {number} memory  MB at most, without pages of files
 */

const SAMPLE_MS = 250;

/**
 * Runs a task. `hasFailed`: the contestant gave no outcome at all, and has to be started again.
 * @param {{ name: string, contestant: Contestant, running: Running, task: Task, file: string, behaviour: Behaviour, scenario: string,
 *   model: Awaited<ReturnType<typeof import("./model.mjs").startModel>>, limits?: Pick<Order, "calls" | "seconds" | "allTokens">, names: { model: string, subModel: string },
 *   timeout: number, seen: Map<number, string> }} how  `seen`: the processes of the contestant, filled in
 * @returns {Promise<{ row: Row, calls: Call[], hasFailed: boolean }>} times of `calls` count from the run's beginning
 */
export async function measure({
  name,
  contestant,
  running,
  task,
  file,
  behaviour,
  scenario,
  model,
  limits,
  names,
  timeout,
  seen,
}) {
  const run = model.begin({ task, convention: contestant.convention, behaviour });
  const code = codeOf(task.turns, CONVENTIONS[contestant.convention], behaviour.atOnce);
  let memory = 0;
  /** @type {string[]} */
  let containers = [];
  let isAsking = false;
  const sample = () => {
    const own = family(running.process());
    for (const { id, started } of own) seen.set(id, started);
    memory = Math.max(memory, ownMegabytes([...own.map(({ id }) => id), ...inGroups(containers)]));
    if (containers.length > 0 || isAsking || !running.containers) return;
    isAsking = true; // once: the question takes a moment of the processor
    void running.containers().then((ids) => ([containers, isAsking] = [ids, false]));
  };
  const begin = performance.now();
  const sampling = setInterval(sample, SAMPLE_MS);
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, timeout * 1000)));
  let hasFailed = false;
  const fail = (/** @type {string} */ error) => {
    hasFailed = true;
    return { error };
  };
  /** @type {Outcome} */
  const outcome = await Promise.race([
    running
      .ask({ task: task.task, file, url: contestant.isPage ? run.pageUrl : run.url, code, ...names, ...limits })
      .catch((error) => fail(String(error))),
    late.then(() => fail("no answer in time")),
  ]);
  if (outcome.error?.startsWith("it has ended")) hasFailed = true;
  const end = performance.now();
  clearTimeout(timer);
  sample();
  clearInterval(sampling);
  const calls = run.calls.map((call) => ({ ...call }));
  // A call that comes later than this was not worth making.
  await new Promise((resolve) => setTimeout(resolve, 100));
  const after = run.calls.length - calls.length;
  run.end();
  const of = (/** @type {Call["kind"]} */ kind) => calls.filter((call) => call.kind === kind);
  const tokens = (/** @type {Call[]} */ list) =>
    list.reduce((sum, call) => sum + call.promptTokens + (call.delivered ? call.replyTokens : 0), 0);
  const prompts = grouped(of("sub"), ({ prompt }) => prompt);
  const delivered = [...prompts.values()].map((attempts) => attempts.filter((call) => call.delivered).length);
  return {
    hasFailed,
    calls: run.calls.map((call) => ({ ...call, start: call.start - begin, end: call.end - begin })),
    row: {
      ...{ contestant: name, scenario, kind: task.kind, seed: task.seed, tokens: task.tokens },
      score: outcome.answer === undefined ? 0 : task.score(outcome.answer),
      ...{ answer: outcome.answer?.slice(0, 500), error: outcome.error },
      wall: (end - begin) / 1000,
      model: criticalPath(calls, behaviour.atOnce) / 1000,
      turns: of("root").filter((call) => call.delivered).length,
      ...{ rootCalls: of("root").length, subCalls: of("sub").length },
      ...{ rootTokens: tokens(of("root")), subTokens: tokens(of("sub")) },
      lost: delivered.filter((times) => times === 0).length,
      doubled: delivered.filter((times) => times > 1).length,
      late: after,
      first: (Math.min(...calls.map(({ start }) => start)) - begin) / 1000,
      begun: outcome.ahead?.begun ?? 0,
      broke: of("root").filter((call) => call.broke).length,
      wasted: (outcome.ahead?.begun ?? 0) - (outcome.ahead?.used ?? 0),
      memory,
    },
  };
}

/**
 * The time that the model alone would have needed, if nothing else took any and all calls of a batch were made at once: replies one
 * after the other, and for each the longest of its sub-calls. Faults and pauses are not in it.
 * @param {Call[]} calls @param {number} [atOnce]  the most calls of a batch, if the code itself cuts batches
 */
export function criticalPath(calls, atOnce = Infinity) {
  const good = calls.filter(({ delivered }) => delivered);
  const replies = good.filter(({ kind }) => kind === "root").reduce((sum, { latency }) => sum + latency, 0);
  // Calls of unknown code are a batch if they overlap.
  let [cluster, until] = [0, -Infinity];
  const sub = good.filter(({ kind }) => kind === "sub").sort((one, other) => one.start - other.start);
  const batches = grouped(sub, ({ turn, question, start, end }) => {
    if (question !== undefined) return `${turn} ${question}`;
    if (start > until) cluster += 1;
    until = Math.max(until, end);
    return `cluster ${cluster}`;
  });
  const longest = [...batches.values()].map((batch) => {
    // A prompt that was answered twice had to be answered once.
    const latencies = [...new Map(batch.map(({ prompt, latency }) => [prompt, latency])).values()];
    const length = batch[0]?.chain ? 1 : atOnce;
    let sum = 0;
    for (let at = 0; at < latencies.length; at += length) sum += Math.max(...latencies.slice(at, at + length));
    return sum;
  });
  return replies + longest.reduce((sum, latency) => sum + latency, 0);
}

/** @param {Call[]} calls @param {(call: Call) => string} key @returns {Map<string, Call[]>} */
function grouped(calls, key) {
  const groups = new Map();
  for (const call of calls) groups.set(key(call), [...(groups.get(key(call)) ?? []), call]);
  return groups;
}

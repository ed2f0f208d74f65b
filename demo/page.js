// The demo's page: gives the text to a sandbox and runs the recorded trajectory there. It reports each step to
// scripts/demo.mjs, which prints it and answers the sub-models' questions.
import { createSandbox } from "../pyodide-glue/index.js";
import { showSummary } from "./summary.js";
import { asText, TEXT_FILE } from "./text.js";
import { parseTrajectory } from "./trajectory.js";

/**
 * @import { Sandbox } from "../dist/index.js"
 * @import { Ran } from "./summary.js"
 * @import { Step, Trajectory } from "./trajectory.js"
 *
 * @typedef {{ kind: "ready", chromium: string, python: string, isolation: string, bridge: string, bootMs: number, textMs: number }} Ready
 * @typedef {{ kind: "step", depth: number, number: number, prompts: number } & Step} StepBegins  `prompts`: number of questions that the step asks
 * @typedef {{ kind: "ran", depth: number, run: Ran }} StepEnds
 * @typedef {{ kind: "child", bootMs?: number }} Child  the sub-RLM's sandbox starts; with `bootMs`, it has started
 * @typedef {{ kind: "model", loadMs: number }} ModelLoaded  the model in this tab
 * @typedef {{ kind: "asked", id: number, open: number }} Asked  `open`: number of unanswered questions, this one included
 * @typedef {{ kind: "answered", id: number, ms: number, error?: string }} Answered
 * @typedef {Ready | StepBegins | StepEnds | Child | ModelLoaded | Asked | Answered | { kind: "end", error?: string, final?: unknown }} DemoEvent
 *
 * @typedef {object} Host  functions that scripts/demo.mjs puts on `window`
 * @property {(event: DemoEvent) => Promise<void>} report
 * @property {(id: number, prompt: string) => Promise<string>} askModel
 * @property {(id: number) => Promise<void>} cancelModel
 */

const host = /** @type {Window & Host} */ (/** @type {unknown} */ (window));
/** The address of the model that runs in this tab, if one does. */
const localModel = new URLSearchParams(location.search).get("local-model");
const [root, child] = await Promise.all([
  recorded(localModel ? "local-trajectory.md" : "trajectory.md"),
  recorded("child-trajectory.md"),
]);
/** Asks the sub-model: in this tab, or by scripts/demo.mjs, because CORS would block most endpoints here. */
let ask = askHost;
/** Counts of the questions to the sub-model since the page was opened. */
const questions = { asked: 0, open: 0, failed: 0, error: "" };

Object.assign(window, { demo: { question: root.question, start, showSummary } });

/** Runs the demo. Reports each step, and at last the answer or the error. */
async function start() {
  try {
    await host.report({ kind: "end", final: await explore() });
  } catch (error) {
    await host.report({ kind: "end", error: error instanceof Error ? error.message : String(error) });
  }
}

async function explore() {
  const text = asText(await (await load(`../${TEXT_FILE}`)).json());
  let begin = performance.now();
  if (localModel) {
    const { loadLocalModel } = await import("./local-model.js");
    const local = await loadLocalModel(localModel);
    ask = (_id, prompt, signal) => local(prompt, signal);
    host.report({ kind: "model", loadMs: performance.now() - begin });
    begin = performance.now();
  }
  const sandbox = await createSandbox({ onLLMQuery, onRLMQuery });
  const bootMs = performance.now() - begin;
  begin = performance.now();
  await sandbox.initialize(text);
  const textMs = performance.now() - begin;
  const { isolation, bridge, python } = sandbox.capabilities;
  host.report({ kind: "ready", isolation, bridge, python, chromium: chromiumVersion(), bootMs, textMs });
  return follow(sandbox, root, 0);
}

/**
 * Runs a trajectory's steps until one declares the final answer, then ends the sandbox.
 * @param {Sandbox} sandbox
 * @param {Trajectory} trajectory
 * @param {number} depth  0, and 1 in the sub-RLM
 */
async function follow(sandbox, trajectory, depth) {
  try {
    for (const [index, step] of trajectory.steps.entries()) {
      // The recorded trajectories keep the questions of the next step in the variable `prompts`.
      const prompts = (await sandbox.listVariables()).find(({ name }) => name === "prompts")?.length ?? 0;
      host.report({ kind: "step", depth, number: index + 1, prompts, ...step });
      const before = { ...questions };
      const { final, ...run } = await sandbox.execute(step.code);
      host.report({ kind: "ran", depth, run });
      if (final) return final.value;
      if (run.error) throw new Error(`${step.title}: ${run.error}`);
      const asked = questions.asked - before.asked;
      // Without any answer, the next steps can only fail, and would cost.
      if (asked > 0 && questions.failed - before.failed === asked)
        throw new Error(`no sub-model answered: ${questions.error}`);
    }
    throw new Error("the trajectory ended without a final answer");
  } finally {
    await sandbox.destroy();
  }
}

/** @param {string} prompt @param {{ signal: AbortSignal }} info */
async function onLLMQuery(prompt, { signal }) {
  const id = ++questions.asked;
  const begin = performance.now();
  const report = (/** @type {string} */ error = "") =>
    host.report({ kind: "answered", id, ms: performance.now() - begin, ...(error && { error }) });
  host.report({ kind: "asked", id, open: ++questions.open });
  try {
    const answer = await ask(id, prompt, signal);
    report();
    return answer;
  } catch (error) {
    questions.failed++;
    questions.error = error instanceof Error ? error.message : String(error);
    report(questions.error);
    throw error;
  } finally {
    questions.open--;
  }
}

/** @param {number} id @param {string} prompt @param {AbortSignal} signal */
function askHost(id, prompt, signal) {
  signal.addEventListener("abort", () => host.cancelModel(id), { once: true });
  return host.askModel(id, prompt);
}

/**
 * Runs the sub-RLM in a sandbox of its own, which sees only the context that it is given.
 * @param {string} _task  the task for a model; the recorded trajectory does not need it
 * @param {unknown} context
 * @param {{ signal: AbortSignal }} info
 */
async function onRLMQuery(_task, context, { signal }) {
  host.report({ kind: "child" });
  const begin = performance.now();
  const sandbox = await createSandbox({ onLLMQuery });
  host.report({ kind: "child", bootMs: performance.now() - begin });
  signal.addEventListener("abort", () => sandbox.destroy(), { once: true });
  await sandbox.initialize(context);
  return String(await follow(sandbox, child, 1));
}

/** @param {string} file */
async function recorded(file) {
  return parseTrajectory(await (await load(file)).text());
}

/** @param {string} file */
async function load(file) {
  const response = await fetch(new URL(file, import.meta.url));
  if (!response.ok) throw new Error(`${file} did not load: ${response.status}`);
  return response;
}

function chromiumVersion() {
  return navigator.userAgent.match(/Chrome\/(\d+)/)?.[1] ?? "";
}

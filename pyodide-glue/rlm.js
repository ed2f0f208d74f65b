// The entry `sandglass/rlm`: a whole Recursive Language Model from one call.

import { readTrajectory, startReplay, startRlm } from "../pkg/sandglass.js";
import { load } from "./supervisor.js";

/** @import { RlmEvent, RlmModelFunction, RlmOptions, RlmRun } from "../pkg/sandglass.js" */

export { readPersistedRun } from "./kept-runs.js";
export { SandboxError } from "./sandbox-error.js";

/**
 * Lets a model answer a task about a context of any size. The model writes Python, which runs in a sandbox, and may ask
 * sub-models and start runs of its own. Rejects with a SandboxError for wrong options only; every other failure is in
 * the result.
 * @param {RlmOptions} options
 * @returns {Promise<RlmRun>}
 */
export async function runRlm(options) {
  return startRlm(await load(options?.sandbox), options);
}

/**
 * Makes a model that repeats its replies of a recorded trajectory, so that the run needs no endpoint.
 * @param {string | RlmEvent[]} trajectory  its JSON lines, or its events
 * @returns {RlmModelFunction}
 */
export function replayRlm(trajectory) {
  const model = load().then((glue) => startReplay(glue, trajectory));
  model.catch(() => {}); // the first call reports the failure
  return async (messages, info) => (await model)(messages, info);
}

/**
 * Writes a trajectory as JSON lines.
 * @param {RlmEvent[]} events
 */
export function toJsonLines(events) {
  return events.map((event) => `${JSON.stringify(event)}\n`).join("");
}

/**
 * Reads the events of a trajectory, to show them. Rejects with code `invalid_option` when the text is no trajectory, or
 * one of another version.
 * @param {string} lines
 * @returns {Promise<RlmEvent[]>}
 */
export async function fromJsonLines(lines) {
  return readTrajectory(await load(), lines);
}

// The entry `sandglass/rlm`: a whole Recursive Language Model from one call.

import { readTrajectory, startReplay, startRlm } from "../pkg/sandglass.js";
import { load } from "./supervisor.js";

/** @import { RlmEvent, RlmModelFunction, RlmOptions, RlmRun } from "../pkg/sandglass.js" */

export { SandboxError } from "./supervisor.js";

/**
 * Lets a model answer a task about a context of any size: it writes Python, which runs in a sandbox and may ask sub-models and
 * start runs of its own. Resolves whatever models and code do; rejects with a SandboxError for wrong options only.
 * @param {RlmOptions} options
 * @returns {Promise<RlmRun>}
 */
export async function runRlm(options) {
  return startRlm(await load(), options);
}

/**
 * A model that replies what it replied in a recorded trajectory, so that it runs again without an endpoint.
 * @param {string | RlmEvent[]} trajectory  its JSON lines, or its events
 * @returns {RlmModelFunction}
 */
export function replayRlm(trajectory) {
  const model = load().then((glue) => startReplay(glue, trajectory));
  model.catch(() => {}); // told by the first call
  return async (messages, info) => (await model)(messages, info);
}

/**
 * A trajectory as JSON lines.
 * @param {RlmEvent[]} events
 */
export function toJsonLines(events) {
  return events.map((event) => `${JSON.stringify(event)}\n`).join("");
}

/**
 * The events of a trajectory, to be shown. Rejects with code `invalid_option` when the text is none, or of another version.
 * @param {string} lines
 * @returns {Promise<RlmEvent[]>}
 */
export async function fromJsonLines(lines) {
  return readTrajectory(await load(), lines);
}

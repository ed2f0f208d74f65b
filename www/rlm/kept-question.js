// The question that is under way, which survives a reload: the browser keeps its replies and its data, and this page its settings.

import { deletePersisted } from "../../pyodide-glue/index.js";
import { readPersistedRun } from "../../pyodide-glue/rlm.js";

/** @import { RlmOptions } from "../../pkg/sandglass.js" */
/** The settings of a question, without the model's key. `by`: the model's address and name. @typedef {{ options: Omit<RlmOptions, "model">, by: string, isSample: boolean }} Settings */

/** The name under which the browser keeps the question. */
const KEPT = "playground question";
const SETTINGS = "sandglass.question";

/**
 * Notes the settings of a question that begins. Returns the name under which the browser keeps it; undefined if it cannot, or if another tab
 * has a question under way. Replies of another model are forgotten.
 * @param {Settings} settings
 */
export async function noteQuestion(settings) {
  try {
    const { held = [] } = await navigator.locks.query();
    if (held.some(({ name }) => name === `sandglass ${KEPT}`)) return undefined;
    if (noted()?.by !== settings.by) await deletePersisted(KEPT);
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
    return KEPT;
  } catch {
    return undefined; // no room, no leave, or no store
  }
}

/** Forgets the question. */
export async function forgetQuestion() {
  try {
    localStorage.removeItem(SETTINGS);
    await deletePersisted(KEPT);
  } catch {
    // it is not there
  }
}

/** @returns {Settings | undefined} */
function noted() {
  const text = localStorage.getItem(SETTINGS);
  return text ? JSON.parse(text) : undefined;
}

/** The question that an earlier visit has left unfinished, and what it is about. */
export async function unfinishedQuestion() {
  try {
    const settings = noted();
    if (!settings) return undefined;
    const kept = await readPersistedRun(KEPT);
    if (kept && kept.outcome === undefined && kept.task === settings.options.task)
      return { ...settings, context: kept.contexts[0] };
  } catch {
    // it is under way in another tab, or damaged
  }
  return undefined;
}

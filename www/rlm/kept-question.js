// The question that is under way, which survives a reload: the browser keeps its replies and its data, and this page its settings.

import { deletePersisted } from "../../pyodide-glue/index.js";
import { readPersistedRun } from "../../pyodide-glue/rlm.js";

/** @import { RlmOptions } from "../../pkg/sandglass.js" */
/** The settings of a question, without the model's key. @typedef {{ options: Omit<RlmOptions, "model">, endpoint: string, isSample: boolean }} Settings */

/** The name under which the browser keeps the question. */
export const KEPT = "playground question";
const SETTINGS = "sandglass.question";

/** Notes the settings of a question that begins. @param {Settings} settings */
export function noteQuestion(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // no room, or no leave: the question does not survive a reload
  }
}

/** Forgets the question. */
export async function forgetQuestion() {
  localStorage.removeItem(SETTINGS);
  await deletePersisted(KEPT).catch(() => {}); // another tab has it, or there is no store
}

/** The question that an earlier visit has left unfinished, and what it is about. */
export async function unfinishedQuestion() {
  try {
    const noted = localStorage.getItem(SETTINGS);
    if (!noted) return undefined;
    const kept = await readPersistedRun(KEPT);
    /** @type {Settings} */
    const settings = JSON.parse(noted);
    if (kept && kept.outcome === undefined && kept.task === settings.options.task)
      return { ...settings, context: kept.contexts[0] };
  } catch {
    // it is under way in another tab, or damaged
  }
  return undefined;
}

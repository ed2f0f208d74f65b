// The second view: cells, variables and host calls. Its sandbox starts when the view is first opened.

import { byId } from "../dom.js";
import { EXAMPLES, RLM_EXAMPLE } from "./examples.js";
import { Notebook } from "./cells.js";
import { aheadPanel } from "./ahead-panel.js";
import { contextPanel } from "./context-panel.js";
import { CallLog } from "./call-log.js";
import { statusPanel } from "./status-panel.js";
import { variablesPanel } from "./variables-panel.js";
import { searchInChild } from "./rlm-query.js";
import { Session } from "./session.js";

/** @param {import("../settings.js").Answer} answer  the model behind `llm_query` */
export function openNotebook(answer) {
  const log = new CallLog();

  const session = new Session({
    onLLMQuery: (prompt, info) =>
      log.record({ name: "llm_query", prompt, signal: info.signal }, () => answer(prompt, info)),

    onRLMQuery: (task, context, { signal }) => {
      const onLLMQuery = (/** @type {string} */ prompt, /** @type {{ model?: string, signal: AbortSignal }} */ info) =>
        log.record({ name: "llm_query", prompt, signal: info.signal, nested: true }, () => answer(prompt, info));
      return log.record({ name: "rlm_query", prompt: task, signal }, () =>
        searchInChild(task, context, { signal, onLLMQuery }),
      );
    },
  });

  const timeout = /** @type {HTMLInputElement} */ (byId("timeout"));
  const refreshVariables = variablesPanel(session);
  const notebook = new Notebook(byId("cells"), {
    session,
    timeout: () => 1000 * (timeout.checkValidity() ? timeout.valueAsNumber : Number(timeout.defaultValue)),
    waitingForHost: () => log.pending > 0,
    onEdit: aheadPanel(session),
  });

  statusPanel(session);
  for (const code of EXAMPLES) notebook.add(code);

  /** @type {Record<string, () => unknown>} */
  const actions = {
    "run-all": () => notebook.runAll(),
    stop: () => notebook.stopAll(),
    restart: () => session.restart(),
    "shut-down": () => session.shutDown(),
    "add-cell": () => notebook.add().focus(),
    "add-rlm": () => notebook.add(RLM_EXAMPLE).focus(),
  };
  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", () => void action());

  void contextPanel(session, () => void refreshVariables());
  void session.start();
}

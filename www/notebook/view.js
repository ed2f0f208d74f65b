// The second view: cells, variables and host calls. Its sandbox starts when the view is first opened.

import { byId } from "../dom.js";
import { aheadPanel } from "./ahead-panel.js";
import { approvals, textOf } from "./approval.js";
import { branches } from "./branches.js";
import { CallLog } from "./call-log.js";
import { Notebook } from "./cells.js";
import { contextPanel } from "./context-panel.js";
import { EXAMPLES, MORE } from "./examples.js";
import { FileMenu } from "./file-menu.js";
import { packagesPanel } from "./packages-panel.js";
import { searchInChild } from "./rlm-query.js";
import { Session } from "./session.js";
import { statusPanel } from "./status-panel.js";
import { Store } from "./store.js";
import { variablesPanel } from "./variables-panel.js";

/** @param {import("../model-form.js").Answer} answer  the model behind `llm_query` */
export function openNotebook(answer) {
  const log = new CallLog();
  const isAllowed = approvals();

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

    // A function of the kind that nobody should leave to a model alone. It moves nothing.
    hostFunctions: {
      pay: {
        call: (/** @type {unknown} */ grains, { to = "nobody" } = {}) => `${grains} grains of sand for ${to}`,
        approve: true,
      },
    },
    onApprove: async (call) => {
      const answer = async () => ((await isAllowed(call)) ? "allowed" : "refused");
      return (await log.record({ name: call.name, prompt: textOf(call), signal: call.signal }, answer)) === "allowed";
    },
  });

  const timeout = /** @type {HTMLInputElement} */ (byId("timeout"));
  const refreshVariables = variablesPanel(session);
  const store = new Store(() => notebook.records);
  const kept = store.load();
  let isBuilt = false;
  const notebook = new Notebook(byId("cells"), {
    session,
    timeout: () => 1000 * (timeout.checkValidity() ? timeout.valueAsNumber : Number(timeout.defaultValue)),
    waitingForHost: () => log.pending > 0,
    onEdit: aheadPanel(session),
    offer: packagesPanel(session),
    // The first cells are no change.
    onChange: () => isBuilt && store.changed(),
  });

  notebook.replace(kept ?? EXAMPLES);
  isBuilt = true;
  statusPanel(session);

  const notice = byId("notice");
  const say = (/** @type {string} */ text) => {
    notice.textContent = text;
    notice.hidden = !text;
  };
  // A run is news enough.
  session.addEventListener("state", () => session.state === "running" && say(""));
  const saved = byId("saved");
  const showSaved = () => {
    saved.textContent = `${store.status}${store.isSaved && session.areVariablesKept ? ", with the variables" : ""}`;
    saved.dataset.state = store.isSaved ? "saved" : "not-saved";
  };
  store.addEventListener("change", showSaved);
  session.addEventListener("state", showSaved);
  session.addEventListener("kept", (event) => {
    showSaved();
    const { detail: why } = /** @type {CustomEvent<string | undefined>} */ (event);
    if (why) say(`The browser has not kept the variables: ${why}.`);
  });
  showSaved();
  branches(session, (runs) => notebook.undone(runs), say);
  const files = new FileMenu(notebook, EXAMPLES, say);
  const help = /** @type {HTMLDialogElement} */ (byId("shortcuts"));

  /** @type {Record<string, () => unknown>} */
  const actions = {
    "run-all": () => notebook.runAll(),
    stop: () => notebook.stopAll(),
    restart: () => session.restart(),
    "shut-down": () => session.shutDown(),
    help: () => help.showModal(),
  };
  for (const [name, record] of Object.entries(MORE)) {
    actions[name] = () => {
      const cell = notebook.add(record);
      cell.focus();
      cell.element.scrollIntoView({ block: "nearest" });
    };
  }
  for (const [id, action] of Object.entries(actions)) byId(id).addEventListener("click", () => void action());

  document.addEventListener("keydown", (event) => {
    if (document.documentElement.dataset.view !== "notebook") return;
    const isTyping = event
      .composedPath()
      .some((it) => it instanceof Element && it.matches("input, textarea, .cm-editor"));
    if (event.key === "?" && !isTyping && !help.open) help.showModal();
    if (event.key.toLowerCase() === "s" && (event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey) {
      event.preventDefault(); // the browser would save the page
      files.save();
    }
  });

  // On a phone the panels would be screens of their own below the cells.
  if (matchMedia("(width < 62rem)").matches) {
    for (const panel of document.querySelectorAll("details.panel")) panel.removeAttribute("open");
  }
  const started = session.start();
  void contextPanel(session, started, () => void refreshVariables());
  void started.then(() => {
    if (session.unkept) say(`${session.unkept}.`);
    else if (session.isResumed) say("Variables and files are back from your last visit.");
  });
  void files.openLink();
}

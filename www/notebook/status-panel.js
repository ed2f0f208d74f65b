// The header's badge: the sandbox's state, the progress of its start, and its capabilities.

import { byId, el } from "../dom.js";

/** @import { Session, Stage, State } from "./session.js" */

/** @type {Record<State, string>} */
const NAMES = {
  booting: "booting",
  ready: "ready",
  running: "running",
  restarting: "restarting",
  destroyed: "shut down",
  failed: "could not start",
};

/** @type {Record<Stage, string>} */
const STAGES = { assets: "fetching Python", python: "starting Python", ready: "loading the context" };

/** @param {Session} session */
export function statusPanel(session) {
  const badge = byId("state");
  const name = byId("state-name");
  const detail = byId("state-detail");
  const steps = byId("steps");
  const start = byId("start");
  start.addEventListener("click", () => void session.start());

  const show = () => {
    const { state, stage, problem, capabilities } = session;
    const starting = state === "booting" || state === "restarting";
    document.documentElement.dataset.state = badge.dataset.state = state;
    name.textContent = NAMES[state];
    steps.hidden = !starting;
    const reached = Object.keys(STAGES).indexOf(stage);
    [...steps.children].forEach((step, index) => step.classList.toggle("reached", index <= reached));
    start.hidden = state !== "destroyed" && state !== "failed";
    for (const id of ["run-all", "stop", "restart", "shut-down"]) {
      const button = /** @type {HTMLButtonElement} */ (byId(id));
      button.disabled = !start.hidden || (id === "stop" && state !== "running") || (id === "run-all" && starting);
    }
    if (state === "failed") detail.textContent = problem;
    else if (state === "destroyed") detail.textContent = "The worker and everything in it are gone.";
    else if (starting) detail.textContent = `${STAGES[stage]} …`;
    else if (capabilities) {
      const { isolation, bridge, python, pyodide } = capabilities;
      const where = isolation === "frame" ? "isolated frame" : "plain worker";
      const parts = [where, `${bridge} bridge`, `Python ${python}`, pyodide && `Pyodide ${pyodide}`];
      detail.replaceChildren(...parts.filter(Boolean).map((part) => el("span", { text: String(part) })));
    }
  };
  session.addEventListener("state", show);
  show();
}

// The state of the notebook's sandbox: in the header's badge, and in the buttons that it allows.

import { byId } from "../dom.js";
import { setPython } from "../python-status.js";

/** @import { Session, State } from "./session.js" */

/** @type {Record<State, string>} */
const NAMES = {
  booting: "starting",
  ready: "ready",
  running: "running",
  restarting: "restarting",
  destroyed: "shut down",
  failed: "could not start",
};

/** @param {Session} session */
export function statusPanel(session) {
  const start = byId("start");
  const facts = byId("python-facts");
  start.addEventListener("click", () => void session.start());

  const show = () => {
    const { state, stage, problem, capabilities } = session;
    const starting = state === "booting" || state === "restarting";
    start.hidden = state !== "destroyed" && state !== "failed";
    byId("stop").hidden = state !== "running";
    byId("run-all").hidden = !start.hidden;
    for (const id of ["run-all", "restart", "shut-down"]) {
      const button = /** @type {HTMLButtonElement} */ (byId(id));
      button.disabled = !start.hidden || (id === "run-all" && starting);
    }
    const detail = { failed: problem, destroyed: "Python and all its variables are gone." };
    const isolated = capabilities?.isolation === "frame" ? ", isolated, without network" : "";
    setPython("notebook", {
      state,
      name: NAMES[state],
      stage: starting ? stage : undefined,
      detail: detail[/** @type {"failed"} */ (state)] ?? (capabilities && `Python ${capabilities.python}${isolated}`),
    });
    if (!capabilities) return void (facts.textContent = "");
    const { isolation, bridge, python, pyodide } = capabilities;
    const where = isolation === "frame" ? "isolated frame" : "plain worker";
    facts.textContent = [where, `${bridge} bridge`, `Python ${python}`, pyodide && `Pyodide ${pyodide}`]
      .filter(Boolean)
      .join(" · ");
  };
  session.addEventListener("state", show);
  show();
}

// The header's badge: the state of Python, and the progress of its start. Each view shows its own.

import { byId } from "./dom.js";

/** The stages of a start, in their order, in words. */
export const STAGES = { assets: "fetching Python", python: "starting Python", ready: "loading the context" };

/** @typedef {keyof typeof STAGES} Stage */
/** @typedef {{ state: string, name: string, stage?: Stage, detail?: string }} PythonState */

/** The state on show. @type {Map<string, PythonState>} */
const states = new Map();
let shownView = "";

/** Sets the state of a view's Python. @param {string} view @param {PythonState} state */
export function setPython(view, state) {
  states.set(view, state);
  if (view === shownView) draw(state);
}

/** Shows the state of a view's Python. @param {string} view */
export function showPythonOf(view) {
  shownView = view;
  draw(states.get(view) ?? { state: "destroyed", name: "not started" });
}

/** @param {PythonState} state */
function draw({ state, name, stage, detail }) {
  document.documentElement.dataset.state = byId("state").dataset.state = state;
  byId("state-name").textContent = name;
  byId("state-detail").textContent = stage ? `${STAGES[stage]} …` : (detail ?? "");
  drawSteps(byId("steps"), stage);
}

/** Shows a start's progress in a list of three steps. @param {HTMLElement} steps @param {Stage | undefined} stage */
export function drawSteps(steps, stage) {
  steps.hidden = stage === undefined;
  const reached = stage ? Object.keys(STAGES).indexOf(stage) : -1;
  [...steps.children].forEach((step, index) => step.classList.toggle("reached", index <= reached));
}

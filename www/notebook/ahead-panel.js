// The panel of work ahead: a switch for it, and its figures for each source of predictions.

import { byId } from "../dom.js";
import { count, time } from "../format.js";

/** @import { Source, Tally } from "../../pkg/sandglass.js" */
/** @import { Session } from "./session.js" */

/** Time without typing after which a cell counts as written. */
const PAUSE_MS = 800;
/** Time between two readings of the figures: no event tells of the begin or end of a run ahead. */
const SHOW_MS = 500;
/** The sources' names in the panel. @type {Record<Source, string>} */
const NAMES = {
  explicit: "Cells being written",
  stream: "Streamed code",
  model: "Drafts",
  conversation: "Guessed from what was said",
  pattern: "Guessed from the last code",
  dataframe: "Guessed from the tables",
  code: "Guessed: the last code again",
};

/** @param {Session} session @returns {(code: string) => void} takes the code of a cell that will probably be run */
export function aheadPanel(session) {
  const wanted = /** @type {HTMLInputElement} */ (byId("ahead"));
  const guesses = /** @type {HTMLInputElement} */ (byId("guesses"));
  const brought = byId("ahead-brought");
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let pause;

  const show = () => {
    const tallies = Object.entries(session.stats()?.ahead.code ?? {});
    brought.hidden = tallies.length === 0;
    const text = tallies.map(([source, tally]) => describe(/** @type {Source} */ (source), tally)).join("\n");
    if (brought.textContent !== text) brought.textContent = text;
  };
  session.addEventListener("state", show);
  setInterval(show, SHOW_MS);
  guesses.addEventListener("change", () => session.configure({ predictions: guesses.checked ? "auto" : "off" }));

  return (code) => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      if (wanted.checked && code.trim()) void session.hint(code);
    }, PAUSE_MS);
  };
}

/** @param {Source} source @param {Tally} tally */
function describe(source, { started, finished, used, timeSaved }) {
  const come = used > 0 ? `${used} used: ${time(timeSaved)} saved` : "none used yet";
  return `${NAMES[source]}: ${count(started, "run")} ahead, ${finished} finished, ${come}.`;
}

// Whether cells run ahead, and what that has brought, by what had predicted them.

import { byId } from "../dom.js";
import { count, time } from "../format.js";

/** @import { Source, Tally } from "../../pkg/sandglass.js" */
/** @import { Session } from "../session.js" */

/** The time without typing before what is written may be meant. */
const PAUSE_MS = 800;
/** Nothing tells when a run ahead begins or ends. */
const SHOW_MS = 500;
/** The names that people have for the sources. @type {Record<Source, string>} */
const NAMES = {
  explicit: "Cells being written",
  stream: "Streamed code",
  model: "Drafts",
  conversation: "Guessed from what was said",
  pattern: "Guessed from the last code",
  dataframe: "Guessed from the tables",
  code: "Guessed: the last code again",
};

/** @param {Session} session @returns {(code: string) => void} hears what a cell says that will probably be run */
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

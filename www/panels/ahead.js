// Whether cells run ahead while they are written, and what that has brought.

import { byId } from "../dom.js";
import { count, time } from "../format.js";

/** @import { Session } from "../session.js" */

/** How long nobody types before what is written may be meant. */
const PAUSE_MS = 800;
/** Nothing tells when a run ahead begins or ends. */
const SHOW_MS = 500;

/** @param {Session} session @returns {(code: string) => void} hears what a cell says that will probably be run */
export function aheadPanel(session) {
  const wanted = /** @type {HTMLInputElement} */ (byId("ahead"));
  const brought = byId("ahead-brought");
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let pause;

  const show = () => {
    const code = session.stats()?.ahead.code.explicit;
    brought.hidden = !code;
    if (!code) return;
    const used = code.used > 0 ? `${code.used} used: ${time(code.timeSaved)} saved` : "none used yet";
    const text = `${count(code.started, "run")} ahead, ${code.finished} finished, ${used}.`;
    if (brought.textContent !== text) brought.textContent = text;
  };
  session.addEventListener("state", show);
  setInterval(show, SHOW_MS);

  return (code) => {
    clearTimeout(pause);
    pause = setTimeout(() => {
      if (wanted.checked && code.trim()) void session.hint(code);
    }, PAUSE_MS);
  };
}

// The panel that chooses the value of `context`: the sample, pasted text or a file.

import { byId } from "../dom.js";
import { count } from "../format.js";
import { harbourLog } from "../sample.js";

/** @import { Session } from "./session.js" */

const PREVIEW_CHARS = 400;

/** @param {Session} session @param {() => void} onChange */
export function contextPanel(session, onChange) {
  const name = byId("context-name");
  const size = byId("context-size");
  const peek = byId("context-peek");
  const pasted = /** @type {HTMLTextAreaElement} */ (byId("context-text"));
  const file = /** @type {HTMLInputElement} */ (byId("context-file"));
  const paste = /** @type {HTMLDetailsElement} */ (byId("context-paste"));

  /** @param {string} label @param {string} text */
  const use = async (label, text) => {
    name.textContent = label;
    peek.textContent = text.length > PREVIEW_CHARS ? `${text.slice(0, PREVIEW_CHARS)}…` : text || "(empty)";
    size.textContent = "loading …";
    try {
      await session.setContext(text);
      size.textContent = `${count(text.length, "character")} · ${count(linesOf(text), "line")}`;
    } catch (error) {
      size.textContent = `not loaded: ${error instanceof Error ? error.message : error}`;
    }
    onChange();
  };
  const useSample = () => use("Harbour log (generated on this page)", harbourLog());

  byId("context-sample").addEventListener("click", useSample);
  byId("context-use").addEventListener("click", () => {
    paste.open = false;
    void use("Pasted text", pasted.value);
  });
  file.addEventListener("change", async () => {
    const [chosen] = file.files ?? [];
    if (!chosen) return;
    size.textContent = "reading …";
    try {
      await use(chosen.name, await chosen.text());
    } catch (error) {
      size.textContent = `could not be read: ${error instanceof Error ? error.message : error}`;
    }
    file.value = ""; // so that the same file can be chosen again
  });
  return useSample();
}

/** @param {string} text */
function linesOf(text) {
  let lines = text && !text.endsWith("\n") ? 1 : 0;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}

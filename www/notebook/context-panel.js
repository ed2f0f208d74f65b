// The panel that chooses the value of `context`: the sample, pasted text, a file, or what the browser has kept.

import { byId } from "../dom.js";
import { count } from "../format.js";
import { harbourLog } from "../sample.js";

/** @import { Session } from "./session.js" */

const PREVIEW_CHARS = 400;

/** @param {Session} session @param {Promise<void>} started  the session's start @param {() => void} onChange */
export function contextPanel(session, started, onChange) {
  const name = byId("context-name");
  const size = byId("context-size");
  const peek = byId("context-peek");
  const pasted = /** @type {HTMLTextAreaElement} */ (byId("context-text"));
  const file = /** @type {HTMLInputElement} */ (byId("context-file"));
  const paste = /** @type {HTMLDetailsElement} */ (byId("context-paste"));

  /** @param {string} label @param {string} text */
  const show = (label, text) => {
    name.textContent = label;
    peek.textContent = text.length > PREVIEW_CHARS ? `${text.slice(0, PREVIEW_CHARS)}…` : text || "(empty)";
    size.textContent = `${count(text.length, "character")} · ${count(linesOf(text), "line")}`;
  };

  /** @param {string} label @param {string} text */
  const use = async (label, text) => {
    name.textContent = label;
    size.textContent = "loading …";
    try {
      await session.setContext(text);
      show(label, text);
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
  return session.isKept().then(async (isKept) => {
    if (!isKept) return useSample();
    await started;
    if (!session.isResumed) return useSample();
    const context = await session.variable("context");
    session.adoptContext(context);
    show("The context of your last visit", typeof context === "string" ? context : String(context));
    onChange();
  });
}

/** @param {string} text */
function linesOf(text) {
  let lines = text && !text.endsWith("\n") ? 1 : 0;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}

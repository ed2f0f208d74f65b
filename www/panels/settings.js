// Which model answers. The key lives in its input only: nothing here stores it.

import { byId } from "../dom.js";
import { complete, extract } from "../model.js";

/** @returns {(prompt: string, info: { model?: string, signal: AbortSignal }) => Promise<string>} who answers now */
export function settingsPanel() {
  const form = /** @type {HTMLFormElement} */ (byId("model"));
  const fields = byId("endpoint");
  const chosen = () => new FormData(form).get("kind") === "endpoint";
  const text = (/** @type {string} */ name) =>
    /** @type {HTMLInputElement} */ (form.elements.namedItem(name)).value.trim();

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => (fields.hidden = !chosen()));
  fields.hidden = !chosen();

  return async (prompt, info) => {
    if (!chosen()) return extract(prompt);
    return complete({ baseUrl: text("base-url"), model: text("model-name"), key: text("key") }, prompt, info);
  };
}

// The choice of a model. The key lives in its input only: nothing here stores it.

import { byId } from "./dom.js";
import { complete, extract } from "./model.js";

/** @import { RlmEndpoint } from "../pkg/sandglass.js" */
/** @typedef {(prompt: string, info: { model?: string, signal: AbortSignal }) => Promise<string>} Answer */

/** The form of the model: a function that answers one prompt, and the endpoint for whole runs, if one is chosen. */
export function settingsPanel() {
  const form = /** @type {HTMLFormElement} */ (byId("model"));
  const fields = byId("endpoint");
  const isEndpoint = () => new FormData(form).get("kind") === "endpoint";
  const field = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
  const text = (/** @type {string} */ name) => field(name).value.trim();
  const price = (/** @type {string} */ name) => (field(name).value === "" ? undefined : field(name).valueAsNumber);

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", () => (fields.hidden = !isEndpoint()));
  fields.hidden = !isEndpoint();

  /** @type {Answer} */
  const answer = async (prompt, info) => {
    if (!isEndpoint()) return extract(prompt);
    return complete({ baseUrl: text("base-url"), model: text("model-name"), key: text("key") }, prompt, info);
  };

  /** @returns {RlmEndpoint | undefined} */
  const endpoint = () => {
    if (!isEndpoint()) return undefined;
    const [input, output] = [price("price-input"), price("price-output")];
    const isPriced = input !== undefined || output !== undefined;
    return {
      baseUrl: text("base-url"),
      model: text("model-name"),
      apiKey: text("key") || undefined,
      price: isPriced ? { input: input ?? 0, output: output ?? 0 } : undefined,
    };
  };
  return { answer, endpoint };
}

// The choice of a model. The key lives in its input only: nothing here stores it.

import { byId, el } from "./dom.js";
import { complete, extract } from "./model.js";
import { PRESETS, testConnection } from "./presets.js";

/** @import { RlmEndpoint } from "../pkg/sandglass.js" */
/** @import { Preset } from "./presets.js" */
/** @typedef {(prompt: string, info: { model?: string, signal: AbortSignal }) => Promise<string>} Answer */

/** The form of the model: a function that answers one prompt, and the endpoint for whole runs, if one is chosen. */
export function modelForm() {
  const form = /** @type {HTMLFormElement} */ (byId("model"));
  const fields = byId("endpoint");
  const choice = /** @type {HTMLSelectElement} */ (byId("preset"));
  const connect = byId("connect");
  const test = /** @type {HTMLButtonElement} */ (byId("test-model"));
  const tested = byId("tested");
  const preset = () => /** @type {Preset} */ (PRESETS[choice.value]);
  const isEndpoint = () => preset().baseUrl !== undefined;
  const field = (/** @type {string} */ name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));
  const text = (/** @type {string} */ name) => field(name).value.trim();
  const price = (/** @type {string} */ name) => (field(name).value === "" ? undefined : field(name).valueAsNumber);
  const read = () => ({ baseUrl: text("base-url"), model: text("model-name"), key: text("key") });

  choice.append(...Object.entries(PRESETS).map(([value, { name }]) => el("option", { value, text: name })));
  const show = () => {
    fields.hidden = !isEndpoint();
    byId("preset-hint").textContent = preset().hint;
    connect.textContent = isEndpoint() ? `Model: ${text("model-name") || preset().name}` : "Connect a model";
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => (tested.hidden = true));
  form.addEventListener("change", show);
  choice.addEventListener("change", () => {
    // A key for one endpoint is not for another.
    field("key").value = field("model-name").value = "";
    field("base-url").value = preset().baseUrl ?? "";
    byId("models").replaceChildren();
  });
  connect.addEventListener("click", () => {
    /** @type {HTMLDetailsElement} */ (byId("settings")).open = true;
    choice.focus();
  });
  test.addEventListener("click", async () => {
    test.disabled = true;
    tell("Asking …", "");
    const { isRight, text, models } = await testConnection(read(), preset());
    byId("models").replaceChildren(...models.map((value) => el("option", { value })));
    tell(text, isRight ? "right" : "wrong");
    test.disabled = false;
  });
  /** @param {string} words @param {string} state */
  const tell = (words, state) => {
    tested.textContent = words;
    tested.dataset.state = state;
    tested.hidden = false;
  };
  show();

  /** @type {Answer} */
  const answer = async (prompt, info) => (isEndpoint() ? complete(read(), prompt, info) : extract(prompt));

  /** @returns {RlmEndpoint | undefined} */
  const endpoint = () => {
    if (!isEndpoint()) return undefined;
    const [input, output] = [price("price-input"), price("price-output")];
    const isPriced = input !== undefined || output !== undefined;
    const { baseUrl, model, key } = read();
    return {
      baseUrl,
      model,
      apiKey: key || undefined,
      setup: preset().setup,
      price: isPriced ? { input: input ?? 0, output: output ?? 0 } : undefined,
    };
  };
  return { answer, endpoint };
}

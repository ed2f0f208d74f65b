// The models that the page offers, and the test of a connection, which says what is wrong in words that help.

import { lmStudio, ollama } from "../pyodide-glue/models.js";
import { complete } from "./model.js";

/**
 * @import { RlmEndpoint } from "../pkg/sandglass.js"
 * @import { Endpoint } from "./model.js"
 */

/**
 * @typedef {object} Preset
 * @property {string} name
 * @property {string} hint
 * @property {string} [baseUrl]  none: the model is built in
 * @property {string} [setup]  the setting by which the endpoint allows this page
 */

/** A server on this machine. @param {string} name @param {RlmEndpoint} endpoint @returns {Preset} */
const local = (name, { baseUrl, setup }) => ({
  name,
  baseUrl,
  hint: "A model on this machine. Nothing leaves it.",
  setup,
});

/** @type {Record<string, Preset>} */
export const PRESETS = {
  "built-in": { name: "Built in, not an LLM", hint: "A fixed script and keyword extraction. Nothing leaves this tab." },
  ollama: local("Ollama", ollama("")),
  "lm-studio": local("LM Studio", lmStudio("")),
  openai: { name: "OpenAI", baseUrl: "https://api.openai.com/v1", hint: "It needs a key." },
  openrouter: { name: "OpenRouter", baseUrl: "https://openrouter.ai/api/v1", hint: "Many models. It needs a key." },
  own: {
    name: "Another endpoint",
    baseUrl: "",
    hint: "Any endpoint that is OpenAI-compatible: https, or http on this machine.",
  },
};

const MAX_MODELS = 500;
const TEST_MS = 60_000;

/**
 * Asks an endpoint for its models, then asks the model a short question.
 * @param {Endpoint} endpoint
 * @param {Preset} preset
 * @returns {Promise<{ isRight: boolean, text: string, models: string[] }>} `models`: the names that the endpoint lists
 */
export async function testConnection(endpoint, { setup }) {
  const signal = AbortSignal.timeout(TEST_MS);
  const { baseUrl, model } = endpoint;
  /** @type {string[]} */
  let models = [];
  const wrong = (/** @type {string} */ text) => ({ isRight: false, text, models });
  if (!/^https?:\/\/[^/]/i.test(baseUrl)) return wrong("The base URL has to begin with https:// or http://.");
  const url = `${baseUrl.replace(/\/+$/, "")}/models`;
  /** @type {Response} */
  let response;
  try {
    response = await fetch(url, {
      headers: endpoint.key ? { Authorization: `Bearer ${endpoint.key}` } : {},
      credentials: "omit",
      referrerPolicy: "no-referrer",
      signal,
    });
  } catch {
    if (signal.aborted) return wrong(`${url} did not answer within a minute.`);
    const how = setup ? `${setup}.` : "Is the address right, and does the server allow requests from this page (CORS)?";
    return wrong(`${url} cannot be reached. Nothing answers there, or it does not allow this page. ${how}`);
  }
  if (response.status === 401 || response.status === 403) {
    return wrong(`${endpoint.key ? "The key is refused" : "It needs a key"} (status ${response.status}).`);
  }
  const listed = await response.json().catch(() => undefined);
  if (response.ok && listed === undefined) {
    return wrong(`${url} answers, but not with JSON. Is this the base URL? Most end in /v1.`);
  }
  if (response.ok && Array.isArray(listed?.data)) {
    models = listed.data
      .map((/** @type {any} */ it) => it?.id)
      .filter((/** @type {unknown} */ id) => typeof id === "string");
    models = models.slice(0, MAX_MODELS);
  } else if (response.status === 404 && !/\/v\d+\/*$/.test(baseUrl)) {
    return wrong(`${url} is not found (status 404). Most base URLs end in /v1.`);
  }
  const some = models.slice(0, 5).join(", ");
  if (!model)
    return wrong(models.length > 0 ? `It answers. Choose a model, such as ${some}.` : "Enter a model's name.");
  if (models.length > 0 && !models.includes(model)) return wrong(`It has no model “${model}”. It has ${some}.`);
  const begin = performance.now();
  try {
    await complete(endpoint, "Reply with the word yes.", { signal });
  } catch (error) {
    if (signal.aborted) return wrong(`${model} did not answer within a minute.`);
    return wrong(`The model does not answer: ${error instanceof Error ? error.message : error}`);
  }
  return {
    isRight: true,
    text: `It works: ${model} answered in ${((performance.now() - begin) / 1000).toFixed(1)} s.`,
    models,
  };
}

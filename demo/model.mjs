// The model behind the demo's sub-queries: a built-in one that quotes its prompt, or an OpenAI-compatible endpoint.

/**
 * @typedef {object} Model
 * @property {string} label  the model's name in the demo's output
 * @property {(prompt: string, signal: AbortSignal) => Promise<string>} ask
 */

const TIMEOUT_SECONDS = 120;
const ATTEMPTS = 3;

/**
 * Chooses the model. OPENAI_MODEL or OPENAI_BASE_URL select an endpoint. OPENAI_API_KEY alone does not: many shells have
 * one, and a demo should not spend money by surprise.
 * @param {NodeJS.ProcessEnv} env
 * @returns {Model}
 */
export function chooseModel(env) {
  const { OPENAI_BASE_URL: url, OPENAI_API_KEY: key, OPENAI_MODEL: model } = env;
  if (!url && !model)
    return { label: "built-in model: keyword extraction, no LLM", ask: async (prompt) => extract(prompt) };
  if (!model) throw new Error("OPENAI_BASE_URL is set but OPENAI_MODEL is not: set it to the name of a model");
  const base = url || "https://api.openai.com/v1";
  if (!URL.canParse(base)) throw new Error(`OPENAI_BASE_URL is no address: ${base}`);
  return {
    label: `${model} at ${new URL(base).host}`,
    ask: (prompt, signal) =>
      complete({ url: `${base.replace(/\/+$/, "")}/chat/completions`, key, model }, prompt, signal),
  };
}

// --- the built-in model --------------------------------------------------------------------------------------------

const STOP_WORDS = new Set(
  "a an and are as at be by did do for from he her his how in is it many of on or she that the they to was were what when which who with".split(
    " ",
  ),
);

/**
 * Quotes the lines of the prompt's text that share most words with its question. The question ends at the first question
 * mark, and the text begins after the first empty line.
 * @param {string} prompt
 */
export function extract(prompt) {
  const [head = "", ...rest] = prompt.split("\n\n");
  const keywords = new Set(words(head.split("?")[0] ?? "").filter((word) => !STOP_WORDS.has(word)));
  const lines = rest.join("\n\n").split("\n");
  const scores = lines.map((line) => new Set(words(line).filter((word) => keywords.has(word))).size);
  const enough = Math.max(2, Math.max(...scores) - 1, (keywords.size * 2) / 3);
  return lines.filter((_, index) => (scores[index] ?? 0) >= enough).join("\n") || "NONE";
}

/** @param {string} text */
function words(text) {
  return text.toLowerCase().match(/[a-z]+/g) ?? [];
}

// --- an endpoint ---------------------------------------------------------------------------------------------------

/**
 * @param {{ url: string, key?: string, model: string }} endpoint
 * @param {string} prompt
 * @param {AbortSignal} signal
 */
async function complete({ url, key, model }, prompt, signal) {
  const request = {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ model, messages: [{ role: "user", content: prompt }] }),
  };
  for (let attempt = 1; ; attempt++) {
    const { status, retryAfter, text } = await post(url, request, signal);
    if (status === 200) return answerIn(text);
    const passing = status === 429 || status >= 500;
    if (!passing || attempt === ATTEMPTS) throw new Error(`${url} answered ${status}: ${reasonIn(text)}`);
    await pause(Math.min(retryAfter ?? 2 ** attempt, 20) * 1000, signal);
  }
}

/**
 * @param {string} url
 * @param {RequestInit} request
 * @param {AbortSignal} signal
 */
async function post(url, request, signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_SECONDS * 1000);
  try {
    const response = await fetch(url, { ...request, signal: AbortSignal.any([signal, timeout]) });
    const retryAfter = Number(response.headers.get("retry-after") ?? NaN);
    return {
      status: response.status,
      retryAfter: Number.isFinite(retryAfter) ? retryAfter : undefined,
      text: await response.text(),
    };
  } catch (error) {
    if (signal.aborted) throw new Error("the question was withdrawn");
    if (timeout.aborted) throw new Error(`${url} did not answer within ${TIMEOUT_SECONDS} s`);
    const { cause, message } = /** @type {Error & { cause?: { code?: string, message?: string } }} */ (error);
    throw new Error(`${url} cannot be reached: ${cause?.code ?? cause?.message ?? message}`);
  }
}

/** @param {string} text */
function answerIn(text) {
  const content = parsed(text)?.choices?.[0]?.message?.content;
  if (typeof content !== "string")
    throw new Error(`the model's reply has no choices[0].message.content: ${text.slice(0, 120)}`);
  return content;
}

/** The reason that an endpoint gives for its error. @param {string} text */
function reasonIn(text) {
  const reply = parsed(text);
  return String(reply?.error?.message ?? reply?.message ?? (text.slice(0, 120) || "nothing"));
}

/** @param {string} text @returns {any} */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {number} ms @param {AbortSignal} signal */
function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve(undefined)), { once: true });
  });
}

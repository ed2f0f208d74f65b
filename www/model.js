// The models behind `llm_query`: a stand-in built into this page, or an endpoint of the user's choice.

/**
 * @typedef {object} Endpoint
 * @property {string} baseUrl  such as https://api.example.com/v1
 * @property {string} model
 * @property {string} key  may be empty
 */

const STOP_WORDS = new Set(
  `about after also answer been before below context does from give have into list more most only over question said
  says some such tell text than that their them then there these they this those very were what when where which while
  whom whose with would your`.split(/\s+/),
);

/** The words of a text that carry meaning, in the singular. @param {string} text */
export const keywords = (text) =>
  new Set((text.toLowerCase().match(/[\p{L}\p{N}]{4,}/gu) ?? []).filter((word) => !STOP_WORDS.has(word)).map(singular));

/** @param {string} word */
const singular = (word) => word.replace(/(?<=(ss|x|sh|ch))es$|(?<=[^s])s$/, "");

/**
 * Stands in for a language model by keyword extraction. From the text below the prompt's first blank line it takes the
 * sentences that share most words with the question above that line. Rare words count more.
 * @param {string} prompt
 */
export function extract(prompt) {
  const [question, ...rest] = prompt.split(/\n\s*\n/);
  const sentences = rest.join("\n").split(/(?<=[.!?])\s+(?=\p{Lu})|\n+/u);
  const wanted = [...keywords(question ?? "")];
  const words = sentences.map(keywords);
  const weights = wanted.map((word) => {
    const having = words.filter((own) => own.has(word)).length;
    return [word, Math.log(1 + sentences.length / (1 + having))];
  });
  const scores = words.map((own) =>
    weights.reduce((sum, [word, weight]) => sum + (own.has(/** @type {string} */ (word)) ? Number(weight) : 0), 0),
  );
  const best = Math.max(...scores);
  if (!(best > 0)) return "Nothing here shares a keyword with the question.";
  const chosen = sentences.filter((_, index) => /** @type {number} */ (scores[index]) >= 0.8 * best).slice(0, 3);
  return chosen.map((sentence) => sentence.trim().slice(0, 600)).join("\n");
}

/**
 * Asks an OpenAI-compatible endpoint.
 * @param {Endpoint} endpoint
 * @param {string} prompt
 * @param {{ model?: string, signal: AbortSignal }} options
 */
export async function complete({ baseUrl, model, key }, prompt, { model: chosen, signal }) {
  if (!baseUrl) throw new Error("no model endpoint: give its base URL in the model settings");
  const url = `${baseUrl.replace(/\/+$/, "")}/chat/completions`;
  const response = await fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: JSON.stringify({ model: chosen ?? model, messages: [{ role: "user", content: prompt }] }),
    credentials: "omit",
    referrerPolicy: "no-referrer",
    signal,
  }).catch((error) => {
    if (signal.aborted) throw error;
    throw new Error(`${url} cannot be reached: is it up, and does it allow requests from this page (CORS)?`);
  });
  if (!response.ok) throw new Error(`the model endpoint answered ${response.status}: ${await excerpt(response)}`);
  const answer = (await response.json())?.choices?.[0]?.message?.content;
  if (typeof answer !== "string") throw new Error("the model endpoint's answer holds no choices[0].message.content");
  return answer;
}

/** @param {Response} response */
const excerpt = async (response) => (await response.text().catch(() => "")).slice(0, 300);

// The replies of the model that writes code. Each controller gets the same work in its own conventions.

/** @import { Turn } from "./tasks/parts.mjs" */

/**
 * Names of helpers and forms of replies, as a controller's own prompt has them. `prompt` is an expression for one prompt. `single` asks about
 * `PROMPT`, and `batch` about the list `PROMPTS`. `inOneReply`: the controller asks its model for one reply with all of the code.
 * @typedef {{ context: string, prompt: string, single: string, batch: string, answer: string[], inOneReply?: boolean,
 *   reply: (say: string, code: string) => string }} Convention
 */

/** @param {string} language @returns {Convention["reply"]} */
const fenced = (language) => (say, code) => `${say}\n\n\`\`\`${language}\n${code}\n\`\`\``;
const USUAL = {
  context: "context",
  prompt: "f'{question}\\n\\n<<<\\n{text}\\n>>>'",
  single: "llm_query(PROMPT)",
  batch: "llm_query_batched(PROMPTS)",
};

/** @satisfies {Record<string, Convention>} */
export const CONVENTIONS = {
  sandglass: { ...USUAL, answer: ["FINAL(result)"], reply: fenced("repl") },
  rlms: {
    ...USUAL,
    answer: ["answer['content'] = result", "answer['ready'] = True"],
    reply: fenced("repl"),
  },
  dspy: {
    ...USUAL,
    answer: ["SUBMIT(answer=result)"],
    reply: (say, code) =>
      `[[ ## reasoning ## ]]\n${say}\n\n[[ ## code ## ]]\n\`\`\`python\n${code}\n\`\`\`\n\n[[ ## completed ## ]]`,
  },
  minrlm: {
    context: "input_0",
    prompt: "(question, f'<<<\\n{text}\\n>>>')",
    single: "sub_llm(*PROMPT)",
    batch: "sub_llm_batch(PROMPTS)",
    inOneReply: true,
    answer: ["FINAL(result)"],
    reply: fenced("python"),
  },
};

/**
 * The code of each turn. A turn that went well says so at its end.
 * @param {Turn[]} turns @param {Convention} convention @param {number} [atOnce]  the most prompts of a batch; by default a batch has all
 */
export function codeOf(turns, convention, atOnce) {
  const all = turns.flatMap(({ code }) => code).join("\n");
  const helpers = [
    ...(all.includes("ask(") ? ask(convention, atOnce) : []),
    ...(all.includes("ask_one(") ? askOne(convention) : []),
  ];
  return repliesOf(turns, convention).map(({ code }, index) =>
    [...(index === 0 ? helpers : []), ...code, `print('step', ${index + 1}, 'done')`]
      .flatMap((line) => (line === "ANSWER(result)" ? convention.answer : [line]))
      .join("\n")
      .replaceAll("CONTEXT", convention.context),
  );
}

/** The turns as the controller's model writes them. @param {Turn[]} turns @param {Convention} convention @returns {Turn[]} */
function repliesOf(turns, { inOneReply }) {
  return inOneReply ? [{ say: turns[0]?.say ?? "", code: turns.flatMap(({ code }) => code) }] : turns;
}

/** A function of Python that asks one question about a text. @param {Convention} convention */
const askOne = ({ prompt, single }) => [
  "def ask_one(question, text):",
  `    return ${single.replace("PROMPT", prompt)}`,
];

/** A function of Python that asks a question about each text. @param {Convention} convention @param {number} [atOnce] */
function ask({ prompt, batch }, atOnce) {
  const of = (/** @type {string} */ prompts) => batch.replace("PROMPTS", prompts);
  const lines = atOnce
    ? [
        `prompts = [${prompt} for text in texts]`,
        `batches = [prompts[at : at + ${atOnce}] for at in range(0, len(prompts), ${atOnce})]`,
        `return [answer for batch in batches for answer in ${of("batch")}]`,
      ]
    : [`return ${of(`[${prompt} for text in texts]`)}`];
  return ["def ask(question, texts):", ...lines.map((line) => `    ${line}`)];
}

/** The number of turns that went well, by the outputs that a controller shows to its model. @param {string[]} messages */
export function turnsDone(messages) {
  const marks = messages.flatMap((message) =>
    [...message.matchAll(/^step (\d+) done/gm)].map(([, number]) => Number(number)),
  );
  return Math.max(0, ...marks);
}

/** The next reply: the first turn that has not gone well yet. @param {Turn[]} turns @param {Convention} convention @param {number} done @param {number} [atOnce] */
export function replyAfter(turns, convention, done, atOnce) {
  const replies = repliesOf(turns, convention);
  const at = Math.min(done, replies.length - 1);
  return { turn: at, text: convention.reply(replies[at]?.say ?? "", codeOf(turns, convention, atOnce)[at] ?? "") };
}

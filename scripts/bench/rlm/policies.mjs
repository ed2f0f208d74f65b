// The replies of the model that writes code. Each controller gets the same work in its own conventions.

/** @import { Turn } from "./tasks/parts.mjs" */

/** Names of helpers and forms of replies. @typedef {{ context: string, ask: string[], answer: string[], reply: (say: string, code: string) => string }} Convention */

/** @param {string} language @returns {Convention["reply"]} */
const fenced = (language) => (say, code) => `${say}\n\n\`\`\`${language}\n${code}\n\`\`\``;
const ASK = [
  "def ask(question, texts):",
  "    return llm_query_batched([f'{question}\\n\\n<<<\\n{text}\\n>>>' for text in texts])",
];

/** @satisfies {Record<string, Convention>} */
export const CONVENTIONS = {
  sandglass: { context: "context", ask: ASK, answer: ["FINAL(result)"], reply: fenced("repl") },
  rlms: {
    context: "context",
    ask: ASK,
    answer: ["answer['content'] = result", "answer['ready'] = True"],
    reply: fenced("repl"),
  },
  dspy: {
    context: "context",
    ask: ASK,
    answer: ["SUBMIT(answer=result)"],
    reply: (say, code) =>
      `[[ ## reasoning ## ]]\n${say}\n\n[[ ## code ## ]]\n\`\`\`python\n${code}\n\`\`\`\n\n[[ ## completed ## ]]`,
  },
  minrlm: {
    context: "input_0",
    ask: [
      "def ask(question, texts):",
      "    return sub_llm_batch([(question, f'<<<\\n{text}\\n>>>') for text in texts])",
    ],
    answer: ["FINAL(result)"],
    reply: fenced("python"),
  },
};

/** The code of each turn. A turn that went well says so at its end. @param {Turn[]} turns @param {Convention} convention */
export function codeOf(turns, convention) {
  return turns.map(({ code }, index) =>
    [...(index === 0 ? convention.ask : []), ...code, `print('step', ${index + 1}, 'done')`]
      .flatMap((line) => (line === "ANSWER(result)" ? convention.answer : [line]))
      .join("\n")
      .replaceAll("CONTEXT", convention.context),
  );
}

/** The number of turns that went well, by the outputs that a controller shows to its model. @param {string[]} messages */
export function turnsDone(messages) {
  const marks = messages.flatMap((message) =>
    [...message.matchAll(/^step (\d+) done/gm)].map(([, number]) => Number(number)),
  );
  return Math.max(0, ...marks);
}

/** The next reply: the first turn that has not gone well yet. @param {Turn[]} turns @param {Convention} convention @param {number} done */
export function replyAfter(turns, convention, done) {
  const at = Math.min(done, turns.length - 1);
  return { turn: at, text: convention.reply(turns[at]?.say ?? "", codeOf(turns, convention)[at] ?? "") };
}

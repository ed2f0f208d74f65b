// Parts that tasks share.

/**
 * A turn of the work: a sentence, and lines of Python. `CONTEXT`, `ask(question, texts)`, `ask_one(question, text)` and `ANSWER(value)` stand for
 * what each controller calls them. `ask` is one batch, `ask_one` one call.
 * @typedef {{ say: string, code: string[] }} Turn
 * @typedef {object} Made
 * @property {string} context
 * @property {string} task
 * @property {Turn[]} turns
 * @property {(answer: string) => number} score  from 0 to 1
 * @typedef {(dice: import("../seeded.mjs").Dice, characters: number) => Made} Make
 * @typedef {object} Answer  the oracle's answer to a question about a text
 * @property {string} question  the beginning of the prompt
 * @property {boolean} [chain]  each call of it needs the answer of the one before
 * @property {(text: string) => string} right
 * @property {(right: string, dice: import("../seeded.mjs").Dice, text: string) => string} wrong
 */

/** Python that cuts `lines` into chunks: 32 pieces at most, of about 2000 tokens at least. */
export const CHUNKS = [
  "size = max(8192, len(CONTEXT) // 31)",
  "chunks, length = [[]], 0",
  "for line in lines:",
  "    if length > size:",
  "        chunks.append([])",
  "        length = 0",
  "    chunks[-1].append(line)",
  "    length += len(line) + 1",
  "chunks = ['\\n'.join(chunk) for chunk in chunks]",
];

/** The first turn of most tasks. */
export const LOOK = {
  say: "First a look at the data.",
  code: ["lines = CONTEXT.splitlines()", "print(len(lines), lines[:3])"],
};

/** The overlap of a list with the right one (F1), from 0 to 1. @param {string[]} given @param {string[]} right */
export function overlap(given, right) {
  const [found, wanted] = [new Set(given), new Set(right)];
  return (2 * [...found].filter((item) => wanted.has(item)).length) / (found.size + wanted.size || 1);
}

/** Lines of about so many characters in all. @param {number} characters @param {() => string} next */
export function linesUpTo(characters, next) {
  const lines = [];
  for (let length = 0; length < characters; length += (lines.at(-1)?.length ?? 0) + 1) lines.push(next());
  return lines;
}

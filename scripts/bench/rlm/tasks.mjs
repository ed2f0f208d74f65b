// Tasks from seeds, with exact answers, and the oracle's answers to the questions that they ask sub-models.
import { Dice } from "./seeded.mjs";
import { code, codeAnswer } from "./tasks/code.mjs";
import { count, countAnswer } from "./tasks/count.mjs";
import { hopAnswers, hops } from "./tasks/hops.mjs";
import { needle } from "./tasks/needle.mjs";
import { needles, needlesAnswer } from "./tasks/needles.mjs";
import { pairs, pairsAnswer } from "./tasks/pairs.mjs";
import { phrase, phraseAnswer } from "./tasks/phrase.mjs";

/** @import { Answer, Made, Make } from "./tasks/parts.mjs" */
/** @typedef {Made & { kind: string, seed: number, tokens: number }} Task */

/** The beginning and the end of the text in a prompt. */
export const [BEGIN, END] = ["<<<\n", "\n>>>"];

/** @type {Record<string, Make>} */
const MAKERS = { needle, needles, count, pairs, hops, code, phrase };
/** The task for a very small sub-model. */
export const SMALL = "phrase";
export const KINDS = Object.keys(MAKERS).filter((kind) => kind !== SMALL);

/** @type {Answer[]} */
const ANSWERS = [countAnswer, needlesAnswer, pairsAnswer, ...hopAnswers, codeAnswer, phraseAnswer];

/** Makes a task. @param {string} kind @param {number} seed @param {number} tokens  of four characters @returns {Task} */
export function makeTask(kind, seed, tokens) {
  const make = MAKERS[kind];
  if (!make) throw new Error(`unknown task ${kind}: ${Object.keys(MAKERS).join(", ")}`);
  return { ...make(new Dice(kind, seed, tokens), tokens * 4), kind, seed, tokens };
}

/** The question and the text of a prompt to a sub-model; undefined if the prompt is another one. @param {string} prompt */
export function readPrompt(prompt) {
  const answer = ANSWERS.find(({ question }) => prompt.startsWith(question));
  const begin = prompt.indexOf(BEGIN);
  const end = prompt.lastIndexOf(END);
  return answer && begin >= 0 && end > begin ? { answer, text: prompt.slice(begin + BEGIN.length, end) } : undefined;
}

/** The oracle's answer, wrong at the given rate. @param {NonNullable<ReturnType<typeof readPrompt>>} prompt @param {number} errorRate */
export function oracle({ answer, text }, errorRate) {
  const dice = new Dice("oracle", answer.question, text);
  const right = answer.right(text);
  return dice.next() < errorRate ? answer.wrong(right, dice, text) : right;
}

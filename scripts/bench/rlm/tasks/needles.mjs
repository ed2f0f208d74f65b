// Several needles: people who say in words of their own that they have moved, among others who travel.
import { SUBJECTS, complaint, filled, line, people, readLines } from "../messages.mjs";
import { CHUNKS, LOOK, linesUpTo, overlap } from "./parts.mjs";

const MOVED = [
  "We live in CITY now, since MONTH.",
  "My new address is in CITY.",
  "I have settled in CITY for good.",
  "Since MONTH my home is CITY.",
];
const TRAVELS = [
  "I will visit CITY in MONTH.",
  "My sister lives in CITY.",
  "I was in CITY for NUMBER days.",
  "Our office in CITY is closed.",
];
const SAYS_SO = /\bnow, since|new address|settled in|my home is/;
const NEEDLES = 6;

const QUESTION =
  "Who of these writers says that they have moved to another city, and not only that they travel? " +
  "Answer with their full names, separated by semicolons, or with the word nobody, and nothing else.";

/** @type {import("./parts.mjs").Make} */
export function needles(dice, characters) {
  const writers = people(dice, 200);
  const moved = dice.some(writers, NEEDLES);
  const lines = linesUpTo(characters, () => {
    const message = dice.next() < 0.1 ? filled(dice, dice.any(TRAVELS)) : complaint(dice, dice.any(SUBJECTS));
    return line(dice.any(writers), message);
  });
  const places = dice.some(Array.from(lines.keys()), NEEDLES);
  moved.forEach((writer, index) => (lines[places[index] ?? 0] = line(writer, filled(dice, dice.any(MOVED)))));
  return {
    context: lines.join("\n"),
    task: "Who of the writers in the context says that they have moved to another city, and not only that they travel? Answer with their full names, separated by semicolons.",
    turns: [
      LOOK,
      {
        say: "They say so in words of their own, so I ask about pieces of equal size.",
        code: [
          ...CHUNKS,
          `answers = ask(${JSON.stringify(QUESTION)}, chunks)`,
          "names = {name.strip() for answer in answers for name in answer.split(';')}",
          "names = sorted(name for name in names if name in CONTEXT and name)",
          "print(names)",
        ],
      },
      { say: "These are the names.", code: ["result = '; '.join(names)", "ANSWER(result)"] },
    ],
    score: (answer) =>
      overlap(
        namesIn(answer),
        moved.map(({ name }) => name),
      ),
  };
}

/** @type {import("./parts.mjs").Answer} */
export const needlesAnswer = {
  question: QUESTION,
  right: (text) => named(readLines(text).filter(({ message }) => SAYS_SO.test(message))),
  wrong: (right, dice, text) => (right === "nobody" ? named([dice.any(readLines(text))]) : "nobody"),
};

/** The names of people as an answer. @param {{ name: string }[]} people */
export function named(people) {
  return [...new Set(people.map(({ name }) => name))].join("; ") || "nobody";
}

/** The names in an answer. @param {string} answer */
export function namesIn(answer) {
  return answer.split(";").map((name) => name.trim());
}

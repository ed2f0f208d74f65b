// Pairs that satisfy a relation, as OOLONG-Pairs has them: both live in one city, and both report broken hardware.
import { SUBJECTS, complaint, line, people, readLines, subjectOf } from "../messages.mjs";
import { named } from "./needles.mjs";
import { CHUNKS, LOOK, linesUpTo, overlap } from "./parts.mjs";

const QUESTION =
  "Who of these writers reports broken hardware that is not settled yet? " +
  "Answer with their full names, separated by semicolons, or with the word nobody, and nothing else.";

/** @type {import("./parts.mjs").Make} */
export function pairs(dice, characters) {
  const writers = people(dice, 60);
  const reporting = dice.some(writers, 20);
  const others = SUBJECTS.filter((subject) => subject !== "repair");
  const lines = linesUpTo(characters, () => line(dice.any(writers), complaint(dice, dice.any(others))));
  const places = dice.some(Array.from(lines.keys()), reporting.length);
  reporting.forEach((writer, index) => (lines[places[index] ?? 0] = line(writer, complaint(dice, "repair"))));
  const truth = reporting.flatMap((one) =>
    reporting
      .filter(({ name, city }) => city === one.city && name > one.name)
      .map(({ name }) => `${one.name} & ${name}`),
  );
  return {
    context: lines.join("\n"),
    task: "Which pairs of writers in the context live in the same city and both report broken hardware that is not settled yet? Answer with pairs like Ada Abel & Ben Berg, names in alphabetical order, separated by semicolons.",
    turns: [
      LOOK,
      {
        say: "Who reports broken hardware has to be read, so I ask about pieces of equal size.",
        code: [
          ...CHUNKS,
          `answers = ask(${JSON.stringify(QUESTION)}, chunks)`,
          "names = sorted({name.strip() for answer in answers for name in answer.split(';')})",
          "print(len(names), names[:5])",
        ],
      },
      {
        say: "The cities are in the lines, so Python makes the pairs.",
        code: [
          "import re",
          "city = dict(re.findall(r'^(\\w+ \\w+) \\((\\w+)\\):', CONTEXT, re.M))",
          "names = [name for name in names if name in city]",
          "result = '; '.join(f'{a} & {b}' for a in names for b in names if a < b and city[a] == city[b])",
          "ANSWER(result)",
        ],
      },
    ],
    score: (answer) =>
      overlap(
        answer.split(";").map((pair) => pair.trim()),
        truth,
      ),
  };
}

/** @type {import("./parts.mjs").Answer} */
export const pairsAnswer = {
  question: QUESTION,
  right: (text) => named(readLines(text).filter(({ message }) => subjectOf(message) === "repair")),
  wrong: (right, dice, text) => (right === "nobody" ? named([dice.any(readLines(text))]) : "nobody"),
};

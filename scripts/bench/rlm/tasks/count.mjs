// Labels counted over all lines, as OOLONG does. No label is a word of its line: a model has to judge each.
import { EXPLAINED, SUBJECTS, complaint, line, people, readLines, subjectOf } from "../messages.mjs";
import { CHUNKS, LOOK, linesUpTo } from "./parts.mjs";

const FORM = `${EXPLAINED} Answer like billing=1 delivery=2 account=3 repair=4 and nothing else.`;
const QUESTION = `Count these messages by what they are about: ${FORM}`;

/** @type {import("./parts.mjs").Make} */
export function count(dice, characters) {
  const writers = people(dice, 200);
  /** A list in which each subject occurs more or less often. */
  const weighted = SUBJECTS.flatMap((subject) => Array.from({ length: 2 + dice.below(8) }, () => subject));
  const lines = linesUpTo(characters, () => line(dice.any(writers), complaint(dice, dice.any(weighted))));
  const context = lines.join("\n");
  const truth = counted(context);
  return {
    context,
    task: `How many messages of the context are about each of these: ${FORM}`,
    turns: [
      LOOK,
      {
        say: "Each message has to be read, so I ask about pieces of equal size.",
        code: [...CHUNKS, `answers = ask(${JSON.stringify(QUESTION)}, chunks)`, "print(len(answers), answers[:2])"],
      },
      {
        say: "Now the sums.",
        code: [
          "import re",
          "sums = {}",
          "for text in answers:",
          "    for name, number in re.findall(r'(\\w+)=(\\d+)', text):",
          "        sums[name] = sums.get(name, 0) + int(number)",
          `result = ' '.join(f'{name}={sums.get(name, 0)}' for name in ${JSON.stringify(SUBJECTS)})`,
          "ANSWER(result)",
        ],
      },
    ],
    score(answer) {
      const scores = SUBJECTS.map((subject) => {
        const given = new RegExp(`${subject}=(\\d+)`).exec(answer)?.[1];
        return given === undefined ? 0 : 0.75 ** Math.abs(Number(given) - (truth.get(subject) ?? 0));
      });
      return scores.reduce((all, score) => all + score, 0) / scores.length;
    },
  };
}

/** @type {import("./parts.mjs").Answer} */
export const countAnswer = {
  question: QUESTION,
  right: (text) => [...counted(text)].map(([subject, number]) => `${subject}=${number}`).join(" "),
  wrong(right, dice) {
    const subject = dice.any(SUBJECTS);
    return right.replace(new RegExp(`${subject}=(\\d+)`), (_, number) => `${subject}=${Number(number) + 1}`);
  },
};

/** @param {string} text */
function counted(text) {
  const counts = new Map(SUBJECTS.map((subject) => [subject, 0]));
  for (const { message } of readLines(text)) {
    const subject = subjectOf(message);
    if (subject) counts.set(subject, (counts.get(subject) ?? 0) + 1);
  }
  return counts;
}

// One needle among hay: Python finds it, and no sub-model is asked.
import { SUBJECTS, complaint, line, people } from "../messages.mjs";
import { linesUpTo } from "./parts.mjs";

/** @type {import("./parts.mjs").Make} */
export function needle(dice, characters) {
  const writers = people(dice, 200);
  const gate = String(10_000 + dice.below(90_000));
  const lines = linesUpTo(characters, () => line(dice.any(writers), complaint(dice, dice.any(SUBJECTS))));
  lines[dice.below(lines.length)] = line(dice.any(writers), `The code of the harbour gate is ${gate}.`);
  return {
    context: lines.join("\n"),
    task: "One of the messages in the context tells the code of the harbour gate. Answer with that code only.",
    turns: [
      {
        say: "I look for the words of the question.",
        code: ["import re", "hits = re.findall(r'[^\\n]*harbour gate[^\\n]*', CONTEXT)", "print(len(hits), hits[:3])"],
      },
      {
        say: "The code is in that line.",
        code: ["result = re.search(r'gate is (\\d+)', hits[0])[1]", "ANSWER(result)"],
      },
    ],
    score: (answer) => Number(answer.trim() === gate),
  };
}

// A value through a code base, as LongBench-v2's questions about repositories: names are imported under other names on the way.
import { linesUpTo } from "./parts.mjs";

const QUESTION =
  "Which function does the last line of this Python function call? Follow imports of the form `from module import name as other`: " +
  "answer like module.name, or with the number if it returns a number, and nothing else.";
const STEPS = 4;

/** @type {import("./parts.mjs").Make} */
export function code(dice, characters) {
  let made = 0;
  const next = () => {
    made += 1;
    return { file: `pkg${dice.below(40)}/mod${made}.py`, name: `step_${dice.below(90_000) + 10_000}` };
  };
  const moduleOf = (/** @type {string} */ file) => file.replace("/", ".").replace(".py", "");
  const text = (/** @type {ReturnType<typeof next>} */ at, /** @type {ReturnType<typeof next> | number} */ to) => {
    const alias = `helper_${dice.below(900) + 100}`;
    const lines = typeof to === "number" ? [] : [`from ${moduleOf(to.file)} import ${to.name} as ${alias}`, ""];
    const last = typeof to === "number" ? `return ${to}` : `return ${alias}(value)`;
    return [
      `# file: ${at.file}`,
      ...lines,
      `def ${at.name}(value):`,
      `    seen.append(${dice.below(1000)})`,
      `    value = value * ${2 + dice.below(9)} + ${dice.below(100)}`,
      `    ${last}`,
    ].join("\n");
  };
  const chain = Array.from({ length: STEPS }, next);
  const result = 1000 + dice.below(9000);
  const files = linesUpTo(characters, () => text(next(), dice.next() < 0.2 ? dice.below(1000) : next()));
  const places = dice.some(Array.from(files.keys()), STEPS);
  chain.forEach((at, index) => (files[places[index] ?? 0] = text(at, chain[index + 1] ?? result)));
  const first = chain[0] ?? next();
  return {
    context: files.join("\n\n\n"),
    task: `The context is a code base, whose files begin with lines like # file: pkg1/mod2.py. Which number does ${moduleOf(first.file)}.${first.name}(1) return in the end? Answer with the number only.`,
    turns: [
      {
        say: "I cut the code base into its files.",
        code: [
          "files = {text.split('\\n')[0][8:-3].replace('/', '.'): text for text in CONTEXT.split('\\n\\n\\n')}",
          `place = ${JSON.stringify(`${moduleOf(first.file)}.${first.name}`)}`,
          "print(len(files), place.rpartition('.')[0] in files)",
        ],
      },
      {
        say: "Each file says where the next one is: I ask until a number comes.",
        code: [
          "for step in range(8):",
          "    text = files.get(place.rpartition('.')[0])",
          "    if text is None:",
          "        break",
          `    place = ask_one(${JSON.stringify(QUESTION)}, text).strip()`,
          "print(place)",
        ],
      },
      { say: "That is the number.", code: ["result = place", "ANSWER(result)"] },
    ],
    score: (answer) => Number(answer.trim() === String(result)),
  };
}

/** @type {import("./parts.mjs").Answer} */
export const codeAnswer = {
  question: QUESTION,
  chain: true,
  right(text) {
    const last = /return (\w+)(?:\(|$)/m.exec(text)?.[1] ?? "";
    const [, module, name] = new RegExp(`from (\\S+) import (\\w+) as ${last}\\b`).exec(text) ?? [];
    return module ? `${module}.${name}` : last;
  },
  wrong: (_, dice) => String(dice.below(1000)),
};

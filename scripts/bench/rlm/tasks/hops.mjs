// Several hops over documents, as BrowseComp-Plus asks for: each document leads to the next, in words of its own.
import { CITIES, FIRST, LAST } from "../messages.mjs";
import { linesUpTo } from "./parts.mjs";

const FORM = "Answer with the name and nothing else.";
/** The questions of the hops, and the sentences that answer them. @type {{ question: string, says: string[] }[]} */
const HOPS = [
  {
    question: `Which company owns the company of this document? ${FORM}`,
    says: ["All shares are held by NAME.", "It has been a part of NAME for years.", "NAME bought it long ago."],
  },
  {
    question: `Which person leads the company of this document? ${FORM}`,
    says: ["At its head stands NAME.", "NAME runs it from a small office.", "Every decision is taken by NAME."],
  },
  {
    question: `In which city did the person of this document grow up? ${FORM}`,
    says: [
      "The first eighteen years were spent in NAME.",
      "Schools in NAME remember this pupil.",
      "NAME was home until the studies began.",
    ],
  },
];
const SYLLABLES = "ba ko mi ren tal ser vo lun dar fi nor gas pel tri".split(" ");

/** @type {import("./parts.mjs").Make} */
export function hops(dice, characters) {
  /** @type {Set<string>} */
  const taken = new Set();
  const fresh = (/** @type {() => string} */ name) => {
    let made = name();
    while (taken.has(made)) made = name();
    taken.add(made);
    return made;
  };
  const company = () =>
    fresh(() => {
      const text = Array.from({ length: 4 }, () => dice.any(SYLLABLES)).join("");
      return `${text.charAt(0).toUpperCase()}${text.slice(1)} Works`;
    });
  const person = () => fresh(() => `${dice.any(FIRST)} ${dice.any(LAST)}-${dice.any(LAST)} ${1 + taken.size}`);
  const says = (/** @type {number} */ hop, /** @type {string} */ name) =>
    dice.any(HOPS[hop]?.says ?? []).replace("NAME", name);
  /** @type {string[]} */
  const companies = [];
  const filler = () => `It is often named beside ${companies.length ? dice.any(companies) : "others"}, its competitor.`;
  const ofCompany = (/** @type {string} */ name, /** @type {string} */ fact) => {
    companies.push(name);
    return `# ${name}\nA company. ${filler()} ${fact} ${filler()}`;
  };
  const chain = [company(), company(), person(), dice.any(CITIES)];
  const [first = "", second = "", leader = "", city = ""] = chain;
  const documents = linesUpTo(characters, () => {
    const kind = dice.below(3);
    if (kind === 2) return `# ${person()}\nA person of some fame. ${says(2, dice.any(CITIES))} More is not known.`;
    return ofCompany(company(), says(kind, kind ? person() : company()));
  });
  const places = dice.some(Array.from(documents.keys()), 3);
  documents[places[0] ?? 0] = ofCompany(first, says(0, second));
  documents[places[1] ?? 0] = ofCompany(second, says(1, leader));
  documents[places[2] ?? 0] = `# ${leader}\nA person of some fame. ${says(2, city)} More is not known.`;
  const find = "[text for text in documents if text.startswith('# ' + name + '\\n')]";
  return {
    context: documents.join("\n\n"),
    task: `In which city did the person grow up who leads the owner of ${first}? Answer with the city only. Each document of the context begins with a line like # NAME.`,
    turns: [
      {
        say: "First I find the document of the company.",
        code: [
          "documents = CONTEXT.split('\\n\\n')",
          `name = ${JSON.stringify(first)}`,
          `found = ${find}`,
          "print(len(documents), found)",
        ],
      },
      ...HOPS.map(({ question }, hop) => ({
        say: hop === 2 ? "The last hop is the answer." : "On to the next document.",
        code: [
          "if found:", // a wrong answer before may lead nowhere
          `    name = ask_one(${JSON.stringify(question)}, found[0]).strip()`,
          ...(hop === 2 ? ["result = name", "ANSWER(result)"] : [`found = ${find}`, "print(name, found)"]),
        ],
      })),
    ],
    score: (answer) => Number(answer.trim() === city),
  };
}

/** @type {import("./parts.mjs").Answer[]} */
export const hopAnswers = HOPS.map(({ question, says }) => ({
  question,
  right: (text) =>
    says.map((sentence) => new RegExp(pattern(sentence), "m").exec(text)?.[1]).find((name) => name !== undefined) ??
    "unknown",
  wrong: (_, dice) => dice.any(CITIES),
}));

/** @param {string} sentence */
function pattern(sentence) {
  return `(?:^|[.] )${sentence.replace(".", "[.]").replace("NAME", "([^.,]+?)")}`;
}

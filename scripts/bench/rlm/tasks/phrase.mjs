// Short sentences, of each of which a sub-model copies a phrase: what a very small model can do. Only a real one is asked.
import { SUBJECTS, complaint, filled, line, people } from "../messages.mjs";
import { linesUpTo } from "./parts.mjs";

/** Sentences about a job, and where the job stands in them. No pattern of text finds it in all of them. */
const SENTENCES = [
  "NAME moved to CITY in MONTH and works there as JOB.",
  "Since MONTH NAME has been JOB in CITY.",
  "NAME of CITY, who is JOB by trade, turned NUMBER in MONTH.",
  "In CITY everybody knows NAME as JOB of NUMBER years.",
];
const JOBS =
  "a glazier,a baker,a tailor,a cooper,a mason,a printer,a miller,a potter,a weaver,a tanner,a saddler,a barber".split(
    ",",
  );
const SENTENCES_ASKED = 12;

/** What each reply copies. The small model sees it once, with examples. */
export const INSTRUCTION = "Copy the job from the sentence.";
/** Sentences and replies that the small model sees before each question. None of them is in a task. @type {[string, string][]} */
export const EXAMPLES = [
  ["Uma Lowe moved to Oslo in June and works there as a nurse.", "a nurse"],
  ["Since May Vic Hart has been a farmer in Bonn.", "a farmer"],
  ["Wim Stone of Riga, who is a sailor by trade, turned 40 in April.", "a sailor"],
  ["In Ghent everybody knows Xena Ford as a painter of 12 years.", "a painter"],
];

/** @type {import("./parts.mjs").Make} */
export function phrase(dice, characters) {
  const writers = people(dice, 200);
  const asked = dice.some(writers, SENTENCES_ASKED).map(({ name }) => ({ name, job: dice.any(JOBS) }));
  const lines = linesUpTo(characters, () => line(dice.any(writers), complaint(dice, dice.any(SUBJECTS))));
  const places = dice.some(Array.from(lines.keys()), SENTENCES_ASKED);
  asked.forEach(({ name, job }, index) => {
    lines[places[index] ?? 0] = `NOTICE ${filled(dice, dice.any(SENTENCES).replace("NAME", name).replace("JOB", job))}`;
  });
  return {
    context: lines.join("\n"),
    task: "Lines that begin with NOTICE each tell somebody's job. Answer with the jobs in the order of the lines, separated by semicolons.",
    turns: [
      {
        say: "Code finds the lines.",
        code: [
          "notices = [line[7:] for line in CONTEXT.splitlines() if line.startswith('NOTICE ')]",
          "print(len(notices), notices[:3])",
        ],
      },
      {
        say: "The sub-model copies the job out of each.",
        code: [`answers = ask(${JSON.stringify(INSTRUCTION)}, notices)`, "print(list(zip(notices, answers))[:3])"],
      },
      {
        say: "Only a phrase that is in its sentence counts.",
        code: [
          "jobs = [answer.strip(' .') for answer in answers]",
          "result = '; '.join(job if job in notice else '?' for job, notice in zip(jobs, notices))",
          "ANSWER(result)",
        ],
      },
    ],
    score(answer) {
      const given = answer.split(";").map((job) => job.trim());
      const wanted = lines.filter((text) => text.startsWith("NOTICE ")).map(jobIn);
      return wanted.filter((job, index) => given[index] === job).length / wanted.length;
    },
  };
}

/** @param {string} sentence */
const jobIn = (sentence) => JOBS.find((job) => sentence.includes(job)) ?? "";

/** @type {import("./parts.mjs").Answer} */
export const phraseAnswer = { question: INSTRUCTION, right: jobIn, wrong: (_right, dice) => dice.any(JOBS) };

// The part of BENCHMARKS.md that a run of `npm run bench:rlm -- --write` makes.
import { quantile } from "../quantile.mjs";
import { markdown, mean, overhead, percent, spread, sum } from "./report.mjs";

/** @import { Row } from "./measure.mjs" */
/** @import { Facts } from "./report.mjs" */

/** The marks of a run's part: its command. */
export const MARK = "<!-- npm run bench:rlm -- --write -->";
export const SMALL_MARK = "<!-- npm run bench:rlm -- --local-sub-model --write -->";
const END = "<!-- end of it -->";

/** The document with the new part between its two marks. @param {string} document @param {string} part @param {string} [mark] */
export function between(document, part, mark = MARK) {
  const begin = document.indexOf(mark);
  const end = document.indexOf(END, Math.max(0, begin));
  if (begin < 0 || end < 0) throw new Error(`BENCHMARKS.md lacks the marks ${mark} and ${END}`);
  return `${document.slice(0, begin + mark.length)}\n\n${part.trim()}\n\n${document.slice(end)}`;
}

/** The table of a run with the small model. @param {Row[]} rows @param {Facts[]} facts @param {{ date: Date, machine: string, load: number, spent: number }} run */
export function smallTable(rows, facts, { date, machine, load, spent }) {
  const distinct = new Set(rows.map(({ seed }) => seed)).size;
  const head = `A run on ${dayOf(date)}: ${machine}, a load of ${load.toFixed(1)}, ${spent} minutes. ${distinct} seeds, 12 sentences each:`;
  const lines = facts.map(({ name, title }) => {
    const own = rows.filter(({ contestant }) => contestant === name);
    const good = own.filter(({ error }) => error === undefined);
    return [
      title,
      own.length ? percent(mean(own.map(({ score }) => score))) : "–",
      spread(good.map(({ model }) => model)),
      spread(good.map(overhead), 2),
    ];
  });
  return `${head}\n\n${markdown(["", "right answers", "the models' time, s", "added, s"], lines)}\n`;
}

/** @param {Date} date */
const dayOf = (date) => date.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });

/**
 * @param {Row[]} rows @param {Facts[]} facts @param {{ calls: number, seconds: number }} limits
 * @param {(name: string) => { calls?: string, seconds?: boolean }} has  the limits that a contestant has
 * @param {{ date: Date, machine: string, load: number, spent: number }} run
 */
export function pageTables(rows, facts, limits, has, { date, machine, load, spent }) {
  const standard = rows.filter(({ scenario }) => scenario === "standard");
  const runs = standard.filter(({ contestant }) => contestant === facts[0]?.name);
  const distinct = (/** @type {keyof Row} */ key) => new Set(runs.map((row) => row[key])).size;
  const head =
    `A run on ${dayOf(date)}: ${machine}, a load of ${load.toFixed(1)}, ${spent} minutes. ${runs.length} runs of each contestant: ` +
    `${distinct("seed")} seeds, ${distinct("kind")} kinds of tasks, ${distinct("tokens")} sizes. "±" is the standard deviation of all of them.`;
  const parts = [head, picture(), main(standard, facts), sizes(standard, facts)];
  const plain = facts.filter((fact) => fact.plain);
  if (rows.some(({ scenario }) => scenario !== "standard")) parts.push(troubles(rows, plain, limits, has));
  return `${parts.join("\n\n")}\n`;
}

const picture = () =>
  "![Seconds that each run adds to the model's own time: a row of dots for each contestant](docs/bench-rlm.svg)";

/** @param {Row[]} standard @param {Facts[]} facts */
function main(standard, facts) {
  const lines = facts.map(({ name, title, isolation }) => {
    const own = standard.filter(({ contestant }) => contestant === name);
    const good = own.filter(({ error }) => error === undefined);
    const added = good.map(overhead);
    const turns = good.filter(({ turns }) => turns > 0).map((row) => (overhead(row) / row.turns) * 1000);
    const total = (/** @type {"lost" | "doubled" | "begun" | "wasted"} */ key) => sum(own.map((row) => row[key]));
    return [
      title,
      own.length ? percent(mean(own.map(({ score }) => score))) : "–",
      added.length ? `${quantile(added, 0.5).toFixed(2)}; ${spread(added, 2)}` : "–",
      spread(turns, 0),
      good.length
        ? quantile(
            good.map(({ first }) => first),
            0.5,
          ).toFixed(2)
        : "–",
      spread(
        good.map(({ rootTokens }) => rootTokens),
        0,
      ),
      `${total("lost")}; ${total("doubled")}`,
      total("begun") > 0 ? `${total("begun")}; ${total("wasted")}` : "–",
      Math.max(0, ...own.map(({ memory }) => memory)).toFixed(0),
      isolation,
    ];
  });
  return markdown(
    [
      ...[
        "",
        "right answers",
        "added, s: median; mean",
        "added per turn, ms",
        "first call after, s",
        "tokens of the code's model",
      ],
      ...["sub-calls lost; doubled", "begun ahead; in vain", "memory, MB", "code is isolated by"],
    ],
    lines,
  );
}

/** @param {Row[]} standard @param {Facts[]} facts */
function sizes(standard, facts) {
  const all = [...new Set(standard.map(({ tokens }) => tokens))].sort((a, b) => a - b);
  const added = (/** @type {string} */ name, /** @type {number} */ size) =>
    standard
      .filter((row) => row.contestant === name && row.tokens === size && row.error === undefined)
      .map((row) => overhead(row));
  return markdown(
    ["added, s, with a context of", ...all.map((size) => `${size.toLocaleString("en")} tokens`)],
    facts.map(({ name, title }) => [title, ...all.map((size) => spread(added(name, size), 2))]),
  );
}

/** Faults and limits. @param {Row[]} rows @param {Facts[]} facts @param {{ calls: number, seconds: number }} limits @param {(name: string) => { calls?: string, seconds?: boolean }} has */
function troubles(rows, facts, limits, has) {
  const faults = [
    ...new Set(rows.flatMap(({ scenario }) => (scenario.startsWith("fault ") ? [scenario.slice(6)] : []))),
  ];
  const of = (/** @type {string} */ name, /** @type {string} */ scenario) =>
    rows.filter((row) => row.contestant === name && row.scenario === scenario);
  const fault = (/** @type {string} */ name, /** @type {string} */ kind) => {
    const own = of(name, `fault ${kind}`);
    const added = own.filter(({ error }) => error === undefined).map(overhead);
    if (own.length === 0) return "–";
    return `${percent(mean(own.map(({ score }) => score)))}${added.length ? `, ${mean(added).toFixed(1)} s` : ""}`;
  };
  return markdown(
    [
      "right answers to `count`, and time added",
      ...faults.map((kind) => `\`${kind}\``),
      ...[`calls made, of ${limits.calls} allowed`, `ended at a limit of ${limits.seconds} s, after s`],
    ],
    facts.map(({ name, title }) => {
      const { calls, seconds } = has(name);
      const made = of(name, "limit of calls").map((row) => row.subCalls + (calls === "all calls" ? row.rootCalls : 0));
      const walls = of(name, "limit of time").map(({ wall }) => wall);
      return [
        title,
        ...faults.map((kind) => fault(name, kind)),
        calls && made.length ? mean(made).toFixed(0) : "no such limit",
        seconds && walls.length ? mean(walls).toFixed(1) : "no such limit",
      ];
    }),
  );
}

// The part of BENCHMARKS.md that a run of `npm run bench:rlm -- --write` makes.
import { quantile } from "../quantile.mjs";
import { answeredByAll, markdown, mean, memoryOf, overhead, percent, spread, sum } from "./report.mjs";
import { FLOOR, standing } from "./standing.mjs";

/** @import { Row } from "./measure.mjs" */
/** @import { Facts, Has, Limits } from "./report.mjs" */

/** What a table says of its run. @typedef {{ date: Date, machine: string, load: number, spent: number, revision: string, notes: string[] }} About */

/** The marks of a run's part: its command. */
export const MARK = "<!-- npm run bench:rlm -- --write -->";
export const AHEAD_MARK = "<!-- npm run bench:rlm -- --calls-ahead --write -->";
export const SMALL_MARK = "<!-- npm run bench:rlm -- --local-sub-model --write -->";
const END = "<!-- end of it -->";
/** A controller that is known and takes no part. */
const LEFT_OUT = [
  "`fast-rlm` 0.5.0",
  "takes no part: its `llm_query` starts an agent, which is shown 2,000 characters of a text at a time, so no oracle can answer in one call",
];

/** The document with the new part between two marks. @param {string} document @param {string} part @param {string} [mark] */
export function between(document, part, mark = MARK) {
  const begin = document.indexOf(mark);
  const end = document.indexOf(END, Math.max(0, begin));
  if (begin < 0 || end < 0) throw new Error(`the page lacks the marks ${mark} and ${END}`);
  return `${document.slice(0, begin + mark.length)}\n\n${part.trim()}\n\n${document.slice(end)}`;
}

/** The table of a run with the small model. @param {Row[]} rows @param {Facts[]} facts @param {About} about */
export function smallTable(rows, facts, about) {
  const distinct = new Set(rows.map(({ seed }) => seed)).size;
  const head = [runOf(about), ...about.notes, `${distinct} seeds, 12 sentences each:`].join(" ");
  const lines = facts.map(({ name, title }) => {
    const own = rows.filter(({ contestant }) => contestant === name);
    const good = own.filter(({ error }) => error === undefined);
    return [
      title,
      own.length ? percent(mean(own.map(({ score }) => score))) : "–",
      spread(good.map(({ wall }) => wall)),
    ];
  });
  return `${head}\n\n${markdown(["", "score", "time of a run, s"], lines)}\n`;
}

/** A sentence about a run. @param {About} about */
const runOf = ({ date, machine, load, spent, revision }) =>
  `A run of ${revision} on ${dayOf(date)}: ${machine}, a load of ${load.toFixed(1)}, ${spent} minutes.`;

/** @param {Date} date */
const dayOf = (date) => date.toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric" });

/**
 * @param {Row[]} rows @param {Facts[]} facts @param {Limits} limits @param {Has} has @param {About} about
 */
export function pageTables(rows, facts, limits, has, about) {
  const standard = rows.filter(({ scenario }) => scenario === "standard");
  const runs = standard.filter(({ contestant }) => contestant === facts[0]?.name);
  const distinct = (/** @type {keyof Row} */ key) => new Set(runs.map((row) => row[key])).size;
  const compared = answeredByAll(rows).filter(({ contestant }) => contestant === facts[0]?.name).length;
  const head = [
    `${runOf(about)} ${runs.length} runs of each contestant:`,
    `${distinct("seed")} seeds, ${distinct("kind")} kinds of tasks, ${distinct("tokens")} sizes. Times and tokens are of the ${compared} that all of them answered.`,
    ...['"±" is the standard deviation.', ...about.notes],
  ].join("\n");
  const hasSome = (/** @type {string} */ name) => rows.some(({ scenario }) => scenario.startsWith(name));
  const plain = facts.filter((fact) => fact.plain);
  const parts = [
    head,
    picture(),
    times(standard, facts),
    work(standard, facts),
    ends(standard, facts),
    sizes(rows, facts),
  ];
  if (hasSome("equal")) parts.push(equal(rows, plain));
  const tried = plain.filter((fact) => fact.faults);
  if (hasSome("fault")) parts.push(troubles(rows, tried));
  if (hasSome("limit")) parts.push(limited(rows, tried, limits, has));
  parts.push(standing(rows, facts));
  return `${parts.join("\n\n")}\n`;
}

const picture = () =>
  "![Seconds that each run adds to the model's own time: a row of dots for each contestant](docs/bench-rlm.svg)\n\n" +
  "A dot is a run, a bar the median, and orange is Sandglass. The scale is logarithmic. Runs that add 0.03 s or less, or less than nothing, stand at its left end.";

/** What a run takes. @param {Row[]} standard @param {Facts[]} facts */
function times(standard, facts) {
  const lines = facts.map(({ name, title, isolation, version }) => {
    const own = standard.filter(({ contestant }) => contestant === name);
    const good = answeredByAll(standard).filter(({ contestant }) => contestant === name);
    const added = good.map(overhead);
    return [
      name.startsWith("sandglass") ? title : `${title} ${name === FLOOR ? "with `openai` " : ""}${version}`,
      own.length ? percent(mean(own.map(({ score }) => score))) : "–",
      spread(good.map(({ wall }) => wall)),
      spread(good.map(({ model }) => model)),
      added.length ? `${quantile(added, 0.5).toFixed(2)} (${spread(added, 2)})` : "–",
      isolation,
    ];
  });
  const head = [
    "",
    "score",
    "time of a run, s",
    "of it the model's own, s",
    "added, s: median (mean)",
    "code is isolated by",
  ];
  return markdown(head, [...lines, LEFT_OUT]);
}

/** What a run does: medians, and sums of calls. @param {Row[]} standard @param {Facts[]} facts */
function work(standard, facts) {
  const middle = (/** @type {number[]} */ values, digits = 0) => {
    const some = values.filter(Number.isFinite);
    const shown = { maximumFractionDigits: digits, minimumFractionDigits: digits };
    return some.length ? quantile(some, 0.5).toLocaleString("en", shown) : "–";
  };
  const lines = facts.map(({ name, title }) => {
    const own = standard.filter(({ contestant }) => contestant === name);
    const good = answeredByAll(standard).filter(({ contestant }) => contestant === name);
    const written = good.filter(({ turns }) => turns > 0);
    const total = (/** @type {"subCalls" | "lost" | "doubled" | "begun" | "wasted"} */ key) =>
      sum(own.map((row) => row[key])).toLocaleString("en");
    return [
      title,
      middle(written.map(({ turns }) => turns)),
      middle(written.map((row) => (overhead(row) / row.turns) * 1000)),
      middle(
        good.map(({ first }) => first),
        2,
      ),
      middle(good.map(({ rootTokens }) => rootTokens)),
      middle(good.map(({ subTokens }) => subTokens)),
      ...[total("subCalls"), total("lost"), total("doubled")],
      total("begun") === "0" ? "–" : `${total("begun")}; ${total("wasted")}`,
      memoryOf(own),
    ];
  });
  const head = [
    ...[
      "medians; calls of all runs",
      "turns",
      "added per turn, ms",
      "first call after, s",
      "tokens of the code's model",
    ],
    ...["of sub-models", "sub-calls", "lost", "doubled", "begun ahead; in vain", "memory, MB"],
  ];
  return markdown(head, lines);
}

/** What is there after the end. @param {Row[]} standard @param {Facts[]} facts */
function ends(standard, facts) {
  const left = facts.filter(({ left }) => left !== "nothing").map(({ title, left }) => `${title} ${left}`);
  const late = facts.flatMap(({ name, title }) => {
    const calls = sum(standard.filter(({ contestant }) => contestant === name).map(({ late }) => late));
    return calls ? [`${title} ${calls}`] : [];
  });
  const silent = facts.flatMap(({ name, title }) => {
    const runs = standard.filter(({ contestant, error }) => contestant === name && error !== undefined).length;
    return runs ? [`${title} ${runs}`] : [];
  });
  const told = (/** @type {string[]} */ list) => list.join(", ") || "nobody";
  return [
    `Left processes or files behind: ${told(left)}.`,
    `Made calls within 0.1 s after the end: ${told(late)}.`,
    `Runs without an answer: ${told(silent)}.`,
  ].join(" ");
}

/** The table of calls ahead, and of the same without. @param {Row[]} rows @param {Facts[]} facts @param {About} about */
export function aheadTable(rows, facts, about) {
  const slow = rows.filter(({ scenario }) => scenario === "slow writer");
  const own = (/** @type {string} */ name) => slow.filter(({ contestant }) => contestant === name);
  // More runs than those that have one without calls ahead beside them.
  const begins = rows.filter(({ scenario, begun }) => scenario.startsWith("slow writer") && begun > 0);
  const total = (/** @type {"begun" | "wasted" | "broke"} */ key) => sum(begins.map((row) => row[key]));
  const most = Math.max(0, ...begins.map(({ wasted, begun }) => wasted / begun));
  const shown = facts.filter(({ name }) => own(name).length > 0);
  const runs = own(shown[0]?.name ?? "").length;
  const table = markdown(
    [
      `a model that writes 50 tokens a second (runs of each: ${runs})`,
      "added, s",
      "calls begun ahead",
      "of them in vain",
      "sub-calls in all",
    ],
    shown.map(({ name, title }) => {
      const total = (/** @type {"begun" | "wasted" | "subCalls"} */ key) =>
        String(sum(own(name).map((row) => row[key])));
      const good = own(name).filter(({ error }) => error === undefined);
      return [title, spread(good.map(overhead), 2), total("begun"), total("wasted"), total("subCalls")];
    }),
  );
  return `${[
    runOf(about),
    table,
    `With calls ahead, in ${begins.length} runs: ${total("broke")} replies whose code ended in the middle; ${total("begun")} calls begun ahead, ` +
      `${total("wasted")} of them in vain (${percent(total("wasted") / Math.max(1, total("begun")))}); in the worst run ${percent(most)}.`,
  ].join("\n\n")}\n`;
}

/** Runs whose code asks in batches that no contestant cuts. @param {Row[]} rows @param {Facts[]} facts */
function equal(rows, facts) {
  const good = answeredByAll(rows, "equal");
  const own = (/** @type {string} */ name) => good.filter(({ contestant }) => contestant === name);
  return markdown(
    [
      `batches of 8 for all (runs of each: ${own(facts[0]?.name ?? "").length})`,
      ...["time of a run, s", "of it the model's own, s", "added, s", "sub-calls doubled"],
    ],
    facts.map(({ name, title }) => [
      title,
      spread(own(name).map(({ wall }) => wall)),
      spread(own(name).map(({ model }) => model)),
      spread(own(name).map(overhead), 2),
      String(sum(own(name).map(({ doubled }) => doubled))),
    ]),
  );
}

/** @param {Row[]} rows @param {Facts[]} facts */
function sizes(rows, facts) {
  const standard = answeredByAll(rows);
  const all = [...new Set(standard.map(({ tokens }) => tokens))].sort((a, b) => a - b);
  const added = (/** @type {string} */ name, /** @type {number} */ size) =>
    standard.filter((row) => row.contestant === name && row.tokens === size).map((row) => overhead(row));
  return markdown(
    ["added, s, with a context of", ...all.map((size) => `${size.toLocaleString("en")} tokens`)],
    facts.map(({ name, title }) => [title, ...all.map((size) => spread(added(name, size), 2))]),
  );
}

/** The runs of a contestant in a scenario. @param {Row[]} rows @param {string} name @param {string} scenario */
const runsOf = (rows, name, scenario) => rows.filter((row) => row.contestant === name && row.scenario === scenario);

/** Faults. @param {Row[]} rows @param {Facts[]} facts */
function troubles(rows, facts) {
  const faults = [
    ...new Set(rows.flatMap(({ scenario }) => (scenario.startsWith("fault ") ? [scenario.slice(6)] : []))),
  ];
  const cell = (/** @type {string} */ name, /** @type {string} */ kind) => {
    const own = runsOf(rows, name, `fault ${kind}`);
    const added = own.filter(({ error }) => error === undefined).map(overhead);
    if (own.length === 0) return "–";
    return `${percent(mean(own.map(({ score }) => score)))}${added.length ? `, ${spread(added)} s` : ""}`;
  };
  const runs = runsOf(rows, facts[0]?.name ?? "", `fault ${faults[0]}`).length;
  return markdown(
    [`score of \`count\`, and time added (runs of each cell: ${runs})`, ...faults.map((kind) => `\`${kind}\``)],
    facts.map(({ name, title }) => [title, ...faults.map((kind) => cell(name, kind))]),
  );
}

/** Limits, what was used at each, and what became of the run. @param {Row[]} rows @param {Facts[]} facts @param {Limits} limits @param {Has} has */
function limited(rows, facts, limits, has) {
  /** @param {string} name @param {string} scenario @param {unknown} there @param {(row: Row) => number} used @param {number} [digits] */
  const cell = (name, scenario, there, used, digits = 0) => {
    const own = runsOf(rows, name, scenario);
    if (!there) return "no such limit";
    if (own.length === 0) return "–";
    const amount = mean(own.map(used));
    // It asked its model, and no sub-model.
    if (amount === 0 && there === "sub-calls" && own.every(({ rootCalls }) => rootCalls > 0)) return REFUSED;
    const shown = { maximumFractionDigits: digits, minimumFractionDigits: digits };
    const unit = scenario === "limit of calls" ? ` ${there}` : "";
    return `${amount.toLocaleString("en", shown)}${unit}; ${outcome(own)}`;
  };
  const runs = runsOf(rows, "sandglass-host", "limit of calls").length;
  return markdown(
    [
      `used at a limit (means; runs of each cell: ${runs})`,
      `calls, of ${limits.calls}`,
      `tokens, of ${limits.allTokens.toLocaleString("en")}`,
      `seconds, of ${limits.seconds}`,
    ],
    facts.map(({ name, title }) => {
      const { calls, seconds, allTokens } = has(name);
      const made = (/** @type {Row} */ row) => row.subCalls + (calls === "all calls" ? row.rootCalls : 0);
      return [
        title,
        cell(name, "limit of calls", calls, made),
        cell(name, "limit of tokens", allTokens, ({ rootTokens, subTokens }) => rootTokens + subTokens),
        cell(name, "limit of time", seconds, ({ wall }) => wall, 1),
      ];
    }),
  );
}

/** Of a controller that makes none of a batch which is over its limit. */
const REFUSED = "0 sub-calls: it refuses a batch that is over the limit, and the scripted model writes no smaller one";

/** What became of runs that met a limit. @param {Row[]} own */
function outcome(own) {
  const errors = own.filter(({ error }) => error !== undefined).length;
  const right = own.filter(({ score }) => score > 0.5).length;
  const wrong = own.length - errors - right;
  return [errors && "an error", wrong && "a wrong answer", right && "a right answer"].filter(Boolean).join(" or ");
}

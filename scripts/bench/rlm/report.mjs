// Tables for readers who have never seen this benchmark.

import { quantile } from "../quantile.mjs";

/** @import { Row } from "./measure.mjs" */
/** @typedef {{ name: string, title: string, plain: boolean, faults: boolean, version: string, isolation: string, start: number, left: string }} Facts */

/** Limits of a run. @typedef {{ calls: number, seconds: number, allTokens: number }} Limits  `allTokens`: of all models together */
/** The limits that a contestant has. @typedef {(name: string) => { calls?: string, seconds?: boolean, allTokens?: boolean }} Has */

/** @param {number[]} values */
export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
/** @param {number[]} values */
const deviation = (values) => Math.sqrt(mean(values.map((value) => (value - mean(values)) ** 2)));
/** A mean and its spread. @param {number[]} values @param {number} [digits] */
export const spread = (values, digits = 1) =>
  values.length === 0
    ? "–"
    : `${mean(values).toFixed(digits)}${values.length > 1 ? ` ± ${deviation(values).toFixed(digits)}` : ""}`;
/** @param {number} part */
export const percent = (part) => `${(part * 100).toFixed(part < 1 && part > 0.995 ? 1 : 0)} %`;

/** Seconds of a run in which no model was at work that had to be. @param {Row} row */
export const overhead = ({ wall, model }) => wall - model;

/**
 * The runs without faults of tasks that every contestant answered, but for contestants that answered none. Only these are compared by time and
 * tokens: a controller that goes on until its limit after a wrong reply would otherwise change its mean, and one that reports no answer would not.
 * @param {Row[]} rows @param {string} [scenario]
 */
export function answeredByAll(rows, scenario = "standard") {
  const own = rows.filter((row) => row.scenario === scenario);
  const able = new Set(own.filter(({ error }) => error === undefined).map(({ contestant }) => contestant));
  const taskOf = ({ kind, seed, tokens }) => `${kind} ${seed} ${tokens}`;
  const answers = new Map();
  for (const row of own)
    if (row.error === undefined) answers.set(taskOf(row), (answers.get(taskOf(row)) ?? new Set()).add(row.contestant));
  return own.filter((row) => row.error === undefined && answers.get(taskOf(row))?.size === able.size);
}

/** The main table. @param {Row[]} rows @param {Facts[]} all */
export function mainTable(rows, all) {
  return markdown(
    [
      "",
      "right answers",
      "time of a run, s",
      "of it the model's own, s",
      "added, s: median; mean",
      "added per turn, ms",
      "tokens of the code's model",
      "of sub-models",
      "sub-calls lost; doubled; after the end",
      "begun ahead; in vain",
      "memory, MB",
      "ready after, s",
      "left behind",
    ],
    all.map(({ name, start, left }) => {
      const own = rows.filter(({ contestant, scenario }) => contestant === name && scenario === "standard");
      const good = answeredByAll(rows).filter(({ contestant }) => contestant === name);
      const silent = own.filter(({ error }) => error !== undefined).length;
      return [
        name,
        own.length
          ? percent(mean(own.map(({ score }) => score))) + (silent ? `, ${silent} without an answer` : "")
          : "–",
        spread(good.map(({ wall }) => wall)),
        spread(good.map(({ model }) => model)),
        good.length ? `${quantile(good.map(overhead), 0.5).toFixed(2)}; ${spread(good.map(overhead), 2)}` : "–",
        spread(
          good.filter(({ turns }) => turns > 0).map((row) => (overhead(row) / row.turns) * 1000),
          0,
        ),
        spread(
          good.map(({ rootTokens }) => rootTokens),
          0,
        ),
        spread(
          good.map(({ subTokens }) => subTokens),
          0,
        ),
        ["lost", "doubled", "late"]
          .map((key) => sum(own.map((row) => Number(row[/** @type {keyof Row} */ (key)]))))
          .join("; "),
        ["begun", "wasted"].map((key) => sum(own.map((row) => Number(row[/** @type {keyof Row} */ (key)])))).join("; "),
        memoryOf(own),
        start.toFixed(1),
        left,
      ];
    }),
  );
}

/** The median of the most memory that each run took, in MB. @param {Row[]} rows */
export function memoryOf(rows) {
  if (rows.length === 0) return "–";
  const all = rows.map(({ memory }) => memory);
  return quantile(all, 0.5).toFixed(0);
}

/** Time added, by the size of the context. @param {Row[]} rows @param {Facts[]} all */
export function sizeTable(rows, all) {
  const standard = answeredByAll(rows);
  const sizes = [...new Set(standard.map(({ tokens }) => tokens))].sort((a, b) => a - b);
  const own = (/** @type {string} */ name, /** @type {number} */ size) =>
    standard.filter((row) => row.contestant === name && row.tokens === size);
  return markdown(
    ["added, s, with a context of", ...sizes.map((size) => `${size.toLocaleString("en")} tokens`)],
    all.map(({ name }) => [name, ...sizes.map((size) => spread(own(name, size).map(overhead), 2))]),
  );
}

/** Right answers, by the kind of task. @param {Row[]} rows @param {Facts[]} all */
export function kindTable(rows, all) {
  const kinds = [...new Set(rows.map(({ kind }) => kind))];
  const cell = (/** @type {string} */ name, /** @type {string} */ kind) => {
    const own = rows.filter((row) => row.scenario === "standard" && row.contestant === name && row.kind === kind);
    return own.length ? percent(mean(own.map(({ score }) => score))) : "–";
  };
  return markdown(
    ["right answers", ...kinds],
    all.map(({ name }) => [name, ...kinds.map((kind) => cell(name, kind))]),
  );
}

/** Each kind of fault, compared with the same tasks without. @param {Row[]} rows @param {Facts[]} all */
export function faultTable(rows, all) {
  const faults = [
    ...new Set(rows.flatMap(({ scenario }) => (scenario.startsWith("fault ") ? [scenario.slice(6)] : []))),
  ];
  const cell = (/** @type {string} */ name, /** @type {string} */ fault) => {
    const own = rows.filter((row) => row.contestant === name && row.scenario === `fault ${fault}`);
    if (own.length === 0) return "–";
    const answered = own.filter(({ error }) => error === undefined);
    const lost = sum(own.map(({ lost }) => lost));
    const added = answered.length ? `, + ${mean(answered.map(overhead)).toFixed(1)} s` : "";
    return `${percent(mean(own.map(({ score }) => score)))}${added}${lost ? `, ${lost} calls lost` : ""}`;
  };
  return markdown(
    ["right answers, and time added", ...faults],
    all.map(({ name }) => [name, ...faults.map((fault) => cell(name, fault))]),
  );
}

/** Limits, and what came of them. @param {Row[]} rows @param {Facts[]} all @param {Limits} limits @param {Has} has */
export function limitTable(rows, all, limits, has) {
  const own = (/** @type {string} */ name, /** @type {string} */ scenario) =>
    rows.filter((row) => row.contestant === name && row.scenario === scenario);
  return markdown(
    [
      "",
      `limit of ${limits.calls} calls: calls made`,
      `limit of ${limits.allTokens} tokens: used`,
      `limit of ${limits.seconds} s: ended after, s`,
    ],
    all.map(({ name }) => {
      const { calls, seconds, allTokens } = has(name);
      const used = own(name, "limit of tokens").map(({ rootTokens, subTokens }) => rootTokens + subTokens);
      const made = own(name, "limit of calls").map((row) => row.subCalls + (calls === "all calls" ? row.rootCalls : 0));
      return [
        name,
        calls ? `${spread(made, 0)} (${calls})` : "no such limit",
        allTokens ? spread(used, 0) : "no such limit",
        seconds ? spread(own(name, "limit of time").map(({ wall }) => wall)) : "no such limit",
      ];
    }),
  );
}

/** @param {number[]} values */
export function sum(values) {
  return values.reduce((all, value) => all + value, 0);
}

/** @param {string[]} head @param {string[][]} lines */
export function markdown(head, lines) {
  const row = (/** @type {string[]} */ cells) => `| ${cells.join(" | ")} |`;
  return [row(head), row(head.map(() => "---")), ...lines.map(row)].join("\n");
}

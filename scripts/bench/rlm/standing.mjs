// Where another contestant is ahead of ours, with the reason, and the README's line.
import { quantile } from "../quantile.mjs";
import { answeredByAll, markdown, overhead } from "./report.mjs";

/** @import { Row } from "./measure.mjs" */
/** @import { Facts } from "./report.mjs" */
/** A figure of which less is better. @typedef {{ name: string, unit: string, digits: number, of: (contestant: string) => number | undefined }} Measure */

const OURS = ["sandglass-host", "sandglass-browser"];
/** The floor: no model writes its code, so it is compared with nobody. */
export const FLOOR = "map-reduce";
/** The share by which a figure may be larger and still be level. */
const LEVEL = 0.05;

/** @param {Row[]} rows @returns {Measure[]} */
function measures(rows) {
  const standard = answeredByAll(rows);
  const middle =
    (/** @type {Row[]} */ from, /** @type {(row: Row) => number} */ value) => (/** @type {string} */ name) => {
      const values = from.filter(({ contestant }) => contestant === name).map(value);
      return values.filter(Number.isFinite).length > 0 ? quantile(values.filter(Number.isFinite), 0.5) : undefined;
    };
  const sizes = [...new Set(standard.map(({ tokens }) => tokens))].sort((a, b) => a - b);
  const faults = [
    ...new Set(rows.flatMap(({ scenario }) => (scenario.startsWith("fault ") ? [scenario.slice(6)] : []))),
  ];
  const timed = (/** @type {string} */ name, /** @type {Row[]} */ from) => ({
    ...{ name: `added, ${name}`, unit: "s", digits: 2 },
    of: middle(from, overhead),
  });
  return [
    timed("all tasks", standard),
    ...sizes.map((size) =>
      timed(
        `${size.toLocaleString("en")} tokens`,
        standard.filter(({ tokens }) => tokens === size),
      ),
    ),
    timed("batches of 8", answeredByAll(rows, "equal")),
    ...faults.map((fault) =>
      timed(
        `\`${fault}\``,
        rows.filter(({ scenario, error, score }) => scenario === `fault ${fault}` && !error && score > 0.5),
      ),
    ),
    {
      name: "added per turn",
      unit: "ms",
      digits: 0,
      of: middle(standard, (row) => (overhead(row) / row.turns) * 1000),
    },
    { name: "first call after", unit: "s", digits: 2, of: middle(standard, ({ first }) => first) },
    { name: "tokens of the code's model", unit: "", digits: 0, of: middle(standard, ({ rootTokens }) => rootTokens) },
    { name: "tokens of sub-models", unit: "", digits: 0, of: middle(standard, ({ subTokens }) => subTokens) },
    {
      ...{ name: "memory", unit: "MB", digits: 0 },
      of: middle(
        rows.filter(({ scenario }) => scenario === "standard"),
        ({ memory }) => memory,
      ),
    },
  ];
}

/** The reason for which a rival is ahead of one of ours. @param {string} measure @param {string} own @param {Facts} rival @param {Row[]} rows */
function reason(measure, own, rival, rows) {
  if (measure === "memory" && own === "sandglass-browser")
    return "it is mostly the browser's own, which runs anyway where a page asks";
  if (measure.startsWith("added, `"))
    return rival.name === "minrlm"
      ? "its model writes one reply, so fewer calls meet a fault"
      : "ours adds up to a quarter of a second to the pause that it is told";
  const [its, ours] = [rival.name, own].map((name) => turnsOf(name, rows));
  if (its && ours && its.turns < ours.turns)
    return `it has ${its.turns} turn${its.turns === 1 ? "" : "s"} where ours has ${ours.turns}. Per turn it adds ${its.added.toFixed(0)} ms, ours ${ours.added.toFixed(0)}`;
  if (rival.isolation === "none") return "its code runs in the controller's own process, without isolation";
  if (measure.startsWith("tokens")) return "its own prompts are shorter";
  return "not known yet";
}

/** The medians of a contestant's turns, and of what it adds to each, in milliseconds. @param {string} name @param {Row[]} rows */
function turnsOf(name, rows) {
  const own = answeredByAll(rows).filter(({ contestant, turns }) => contestant === name && turns > 0);
  if (own.length === 0) return undefined;
  const middle = (/** @type {(row: Row) => number} */ value) => quantile(own.map(value), 0.5);
  return { turns: middle(({ turns }) => turns), added: middle((row) => (overhead(row) / row.turns) * 1000) };
}

/**
 * A table of all figures in which another contestant is ahead of ours by more than a twentieth. They are medians.
 * @param {Row[]} rows @param {Facts[]} facts
 */
export function standing(rows, facts) {
  const rivals = facts.filter(({ name, plain }) => plain && name !== FLOOR && !OURS.includes(name));
  const titleOf = (/** @type {string} */ name) => facts.find((fact) => fact.name === name)?.title ?? name;
  const lines = measures(rows).flatMap(({ name, unit, digits, of }) => {
    const shown = (/** @type {number} */ value) => `${value.toFixed(digits)} ${unit}`.trim();
    return OURS.flatMap((own) => {
      const its = of(own);
      if (its === undefined) return [];
      const better = rivals.flatMap((rival) => {
        const value = of(rival.name);
        return value !== undefined && value < its && its - value > LEVEL * Math.abs(its) ? [{ rival, value }] : [];
      });
      if (better.length === 0) return [];
      const reasons = new Set(better.map(({ rival }) => reason(name, own, rival, rows)));
      const ahead = better.map(({ rival, value }) => `${rival.title} ${shown(value)}`);
      return [[name, `${titleOf(own)} ${shown(its)}`, ahead.join(", "), [...reasons].join("; ")]];
    });
  });
  if (lines.length === 0) return "In no column is another contestant ahead of ours by more than a twentieth.";
  return markdown(["where another is ahead by more than a twentieth (medians)", "ours", "ahead", "because"], lines);
}

/** The README's sentences. @param {Row[]} rows @param {Facts[]} facts */
export function readmeLine(rows, facts) {
  const standard = answeredByAll(rows);
  const added = (/** @type {string} */ name) =>
    quantile(standard.filter(({ contestant }) => contestant === name).map(overhead), 0.5);
  const rivals = facts.filter(({ name, plain }) => plain && name !== FLOOR && !OURS.includes(name));
  const shown = (/** @type {number} */ value) => `${value.toFixed(value < 1 ? 2 : 1)} s`;
  const list = (/** @type {boolean} */ isBare) =>
    rivals
      .filter(({ isolation }) => (isolation === "none") === isBare)
      .map(({ name, title }) => ({ title, seconds: added(name) }))
      .sort((one, other) => one.seconds - other.seconds)
      .map(({ title, seconds }) => `${title} ${shown(seconds)}`)
      .join(", ");
  const [host = "", page = ""] = OURS;
  return [
    "With the [same scripted model and tasks](BENCHMARKS.md#the-same-model-and-tasks-side-by-side), a run of an RLM takes",
    `${shown(added(page))} beyond the model's own time in a tab, and ${shown(added(host))} on a server (medians).`,
    `Other controllers that isolate their code: ${list(false)}. Without isolation: ${list(true)}.`,
  ].join(" ");
}

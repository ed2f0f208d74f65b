// Puts the tables of a long run into BENCHMARKS.md, its line into README.md, and the picture and the raw lines beside them.
//   node scripts/bench/rlm/publish.mjs target/bench-rlm/2026-01-01T0000-long   does so again for an earlier run
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../../project.mjs";
import { CONTESTANTS } from "./contestants.mjs";
import { AHEAD_MARK, MARK, SMALL_MARK, aheadTable, between, pageTables, smallTable } from "./page.mjs";
import { picture } from "./spread.mjs";
import { readmeLine } from "./standing.mjs";

/** @import { Row } from "./measure.mjs" */
/** @import { About } from "./page.mjs" */
/** @import { Facts, Limits } from "./report.mjs" */

/** What a run has measured. @typedef {{ rows: Row[], facts: Facts[], about: About, limits: Limits, form: string }} Measured */

/** The part of the page for a run. @param {Measured} run */
export function pageOf({ rows, facts, about, limits, form }) {
  if (form === "ahead") return aheadTable(rows, facts, about);
  const plain = facts.filter((fact) => fact.plain);
  if (form === "small") return smallTable(rows, plain, about);
  return pageTables(rows, facts, limits, (name) => CONTESTANTS[name] ?? {}, about);
}

/** @param {{ name: string, title: string }[]} facts */
export const inPicture = (facts) => facts.map(({ name, title }) => ({ name, title: title.replaceAll("`", "") }));

/** Where the part of a form stands, and its raw lines. @type {Record<string, { mark: string, lines?: string }>} */
const FORMS = {
  long: { mark: MARK, lines: "docs/bench-rlm.jsonl" },
  ahead: { mark: AHEAD_MARK, lines: "docs/bench-rlm-ahead.jsonl" },
  small: { mark: SMALL_MARK },
};

/** @param {Measured} run */
export function publish(run) {
  const { rows, facts, form } = run;
  const place = FORMS[form];
  if (!place) throw new Error(`the form "${form}" has no place in BENCHMARKS.md`);
  put("BENCHMARKS.md", pageOf(run), place.mark);
  if (place.lines) {
    const lines = rows.map((row) => JSON.stringify({ ...row, answer: undefined, calls: undefined }, rounded));
    writeFileSync(join(root, place.lines), `${lines.join("\n")}\n`);
  }
  if (form !== "long") return;
  put("README.md", readmeLine(rows, facts), MARK);
  writeFileSync(join(root, "docs/bench-rlm.svg"), picture(rows, inPicture(facts)));
}

/** @param {string} _ @param {unknown} value */
const rounded = (_, value) => (typeof value === "number" ? Number(value.toFixed(3)) : value);

/** Puts a part into a page of the repository. @param {string} name @param {string} part @param {string} mark */
function put(name, part, mark) {
  const path = join(root, name);
  writeFileSync(path, between(readFileSync(path, "utf8"), part, mark));
}

if (import.meta.main ?? process.argv[1] === import.meta.filename) {
  const folder = process.argv[2] ?? "";
  const { about, ...rest } = JSON.parse(readFileSync(join(folder, "facts.json"), "utf8"));
  const text = readFileSync(join(folder, "runs.jsonl"), "utf8").trim();
  const rows = text.split("\n").map((line) => JSON.parse(line));
  publish({ ...rest, rows, about: { ...about, date: new Date(about.date) } });
}

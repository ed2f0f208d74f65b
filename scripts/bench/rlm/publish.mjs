// Puts the tables of a long run into BENCHMARKS.md, its line into README.md, and the picture and the raw lines beside them.
//   node scripts/bench/rlm/publish.mjs target/bench-rlm/2026-01-01T0000-long   does so again for an earlier run
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { root } from "../../project.mjs";
import { CONTESTANTS } from "./contestants.mjs";
import { MARK, SMALL_MARK, between, pageTables, smallTable } from "./page.mjs";
import { picture } from "./spread.mjs";
import { readmeLine } from "./standing.mjs";

/** @import { Row } from "./measure.mjs" */
/** @import { About } from "./page.mjs" */
/** @import { Facts } from "./report.mjs" */

/** What a run has measured. @typedef {{ rows: Row[], facts: Facts[], about: About, limits: { calls: number, seconds: number }, isSmall: boolean }} Measured */

/** The part of the page for a run. @param {Measured} run */
export const pageOf = ({ rows, facts, about, limits, isSmall }) =>
  isSmall
    ? smallTable(
        rows,
        facts.filter(({ plain }) => plain),
        about,
      )
    : pageTables(rows, facts, limits, (name) => CONTESTANTS[name] ?? {}, about);

/** @param {{ name: string, title: string }[]} facts */
export const inPicture = (facts) => facts.map(({ name, title }) => ({ name, title: title.replaceAll("`", "") }));

/** @param {Measured} run */
export function publish(run) {
  const { rows, facts, isSmall } = run;
  put("BENCHMARKS.md", pageOf(run), isSmall ? SMALL_MARK : MARK);
  if (isSmall) return;
  put("README.md", readmeLine(rows, facts), MARK);
  writeFileSync(join(root, "docs/bench-rlm.svg"), picture(rows, inPicture(facts)));
  const lines = rows.map((row) => JSON.stringify({ ...row, answer: undefined, calls: undefined }, rounded));
  writeFileSync(join(root, "docs/bench-rlm.jsonl"), `${lines.join("\n")}\n`);
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

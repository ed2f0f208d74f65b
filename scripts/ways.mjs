// The ways of messages in docs/internals/ways.md: prints their lengths, and finds what the page says wrongly.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { root } from "./project.mjs";

export const PAGE = "docs/internals/ways.md";

/** @typedef {{ name: string, file: string, how: string, code?: string }} Step  `code` stands in the function */
/** @typedef {{ title: string, steps: Step[] }} Way */

/** @param {string} page @returns {Way[]} */
function waysOf(page) {
  return page
    .split(/^## /m)
    .slice(1)
    .map((section) => {
      const rows = section.matchAll(/^\| `([^`]+)` \| `([^`]+)` \| ([^|`]*?) ?(?:`([^`]+)`)? \|$/gm);
      const steps = [...rows].map(([, name = "", file = "", how = "", code]) => ({ name, file, how, code }));
      return { title: section.slice(0, section.indexOf("\n")).replaceAll("`", ""), steps };
    })
    .filter(({ steps }) => steps.length > 0);
}

/** A function's name without that of its class. @param {string} name */
const bare = (name) => name.replace(/^.*(::|\.)/, "");

/**
 * The texts of the functions with this name.
 * @param {string} source @param {string} name
 */
function bodiesOf(source, name) {
  const begins = new RegExp(
    String.raw`^\s*(?:(?:pub(?:\([a-z]+\))? |async |export |static )*(?:fn|def|function) ${name}\b|(?:const )?${name} = .*=>|(?:async )?${name}\(.*\) \{$)`,
  );
  const lines = source.split("\n");
  return lines.flatMap((line, at) => {
    if (!begins.test(line)) return [];
    const indent = line.search(/\S/);
    const isPython = /^\s*(async )?def /.test(line);
    const isOver = (/** @type {string} */ later) =>
      later.search(/\S/) >= 0 &&
      later.search(/\S/) <= indent &&
      (isPython ? !/^\s*\)/.test(later) : /^\s*\}/.test(later));
    const isWhole = !isPython && /;$/.test(line);
    const length = isWhole ? 0 : lines.slice(at + 1).findIndex(isOver);
    return [lines.slice(at, length < 0 ? undefined : at + 1 + length).join("\n")];
  });
}

/**
 * What the page says wrongly: a function that its file lacks, or that does not hand on to the next one.
 * @param {(file: string) => string} read
 */
export function brokenWays(read) {
  const ways = waysOf(read(PAGE));
  if (ways.length === 0) return [`${PAGE} has no ways`];
  return ways.flatMap(({ title, steps }) =>
    steps.flatMap(({ name, file, code }, at) => {
      const bodies = bodiesOf(read(file), bare(name));
      const next = steps[at + 1];
      const wanted = code ?? (next ? `${bare(next.name)}(` : "");
      if (bodies.length === 0) return [`${title}: ${file} has no function ${name}`];
      if (!wanted) return [`${title}: ${name} is the last one, and there is no code to look for in it`];
      return bodies.some((body) => body.includes(wanted)) ? [] : [`${title}: ${name} of ${file} has no ${wanted}`];
    }),
  );
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const read = (/** @type {string} */ file) => readFileSync(join(root, file), "utf8");
  for (const { title, steps } of waysOf(read(PAGE))) {
    const files = new Set(steps.map(({ file }) => file)).size;
    console.log(`${title}: ${steps.length} functions in ${files} files`);
  }
  const broken = brokenWays(read);
  for (const line of broken) console.log(line);
  process.exitCode = broken.length > 0 ? 1 : 0;
}

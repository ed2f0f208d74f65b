// The site's texts for language models (llmstxt.org).
import { posix } from "node:path";

/** @typedef {import("./pages.mjs").Section} Section @typedef {import("./front-page.mjs").Front} Front */

/**
 * A page as Markdown: without the site's own settings, and with links that hold for the site's folder.
 * @param {string} text
 * @param {string} base
 */
export const forModels = (text, base) =>
  text
    .replace(/^---\n.*?\n---\n+/s, "")
    .replace(/(`)\{#[\w.]+\}/g, "$1")
    .replaceAll("](/", `](${base}`);

/** The list of pages. @param {Front} front @param {Section[]} sections @param {string} base */
export function llmsList({ name, about }, sections, base) {
  const lists = sections.map(({ title, entries }) => {
    const lines = entries.map(
      (entry) => `- [${entry.title}](${posix.join(base, entry.path)})${entry.about && `: ${entry.about}`}`,
    );
    return `## ${title}\n\n${lines.join("\n")}\n`;
  });
  return [
    `# ${name}\n`,
    `> ${about}\n`,
    `All pages in one file: [llms-full.txt](${base}llms-full.txt)\n`,
    ...lists,
  ].join("\n");
}

/** All pages of the list, one after the other. @param {Front} front @param {Section[]} sections @param {Map<string, string>} texts  as Markdown */
export function llmsFull({ name, about }, sections, texts) {
  const paths = new Set(sections.flatMap(({ entries }) => entries.map(({ path }) => path)));
  const pages = [...paths].map((path) => `<!-- ${path} -->\n\n${texts.get(path) ?? ""}`);
  return [`# ${name}\n`, `> ${about}\n`, ...pages].join("\n");
}

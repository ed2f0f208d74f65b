// The site's texts for language models (llmstxt.org).
import { posix } from "node:path";

/** @typedef {import("./pages.mjs").Section} Section @typedef {import("./front-page.mjs").Front} Front */

/** A page as Markdown for readers that take no part in the site: without the site's own settings. @param {string} text */
export const forModels = (text) => text.replace(/^---\n.*?\n---\n+/s, "").replace(/(`)\{#[\w.]+\}/g, "$1");

/** The list of pages. @param {Front} front @param {Section[]} sections */
export function llmsList({ name, about }, sections) {
  const lists = sections.map(({ title, entries }) => {
    const lines = entries.map(
      (entry) => `- [${entry.title}](${posix.join("/", entry.path)})${entry.about && `: ${entry.about}`}`,
    );
    return `## ${title}\n\n${lines.join("\n")}\n`;
  });
  return [`# ${name}\n`, `> ${about}\n`, "All pages in one file: [llms-full.txt](/llms-full.txt)\n", ...lists].join(
    "\n",
  );
}

/** All pages of the list, one after the other. @param {Front} front @param {Section[]} sections @param {Map<string, string>} texts */
export function llmsFull({ name, about }, sections, texts) {
  const paths = new Set(sections.flatMap(({ entries }) => entries.map(({ path }) => path)));
  const pages = [...paths].map((path) => `<!-- ${path} -->\n\n${forModels(texts.get(path) ?? "")}`);
  return [`# ${name}\n`, `> ${about}\n`, ...pages].join("\n");
}

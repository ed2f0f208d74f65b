// The pages of the documentation site: where each comes from, and their order, which is the order of docs/README.md.
import { readdir, readFile } from "node:fs/promises";
import { join, posix } from "node:path";
import { root } from "../project.mjs";

/** Pages from outside of docs/, by their paths in the site. */
const OTHERS = {
  "architecture.md": "ARCHITECTURE.md",
  "contributing.md": "CONTRIBUTING.md",
  "changelog.md": "CHANGELOG.md",
  "benchmarks.md": "BENCHMARKS.md",
  "licences.md": "LICENSES/README.md",
};
/** Pages whose files have a name that only means something on GitHub. */
const RENAMED = {
  "docs/README.md": "pages.md",
  "docs/internals/README.md": "internals/index.md",
  "README.md": "index.md",
};

/**
 * @typedef {{ path: string, source: string, text: string }} Page  `path`: in the site; `source`: in the repository
 * @typedef {{ title: string, path: string, about: string }} Entry  of a list of pages
 * @typedef {{ title: string, entries: Entry[] }} Section
 */

/** Reads all pages but the front page and the reference. Their links lead to other pages of the site. @returns {Promise<Page[]>} */
export async function readPages() {
  const docs = (await readdir(join(root, "docs"), { recursive: true })).map((file) => posix.join("docs", file));
  const documents = [...docs.filter((file) => file.endsWith(".md")), ...Object.values(OTHERS), "README.md"];
  const sources = new Map(documents.map((file) => [file, sitePath(file)]));
  sources.set("LICENSES", "licences.md");
  /** Other files that pages link to, which the site serves as they are. */
  const files = new Set(docs.filter((file) => /\.(png|svg|ipynb)$/.test(file)));

  const pages = [...sources].filter(([source, path]) => source.endsWith(".md") && path !== "index.md");
  return Promise.all(
    pages.map(async ([source, path]) => {
      const text = await readFile(join(root, source), "utf8");
      return { path, source, text: moveLinks(text, source, path, sources, files) };
    }),
  );
}

/**
 * The text with links for its place in the site.
 * @param {string} text
 * @param {string} source
 * @param {string} path
 * @param {Map<string, string>} pages  paths in the site by paths in the repository
 * @param {Set<string>} files
 */
function moveLinks(text, source, path, pages, files) {
  return outsideOfCode(text, (prose) =>
    prose.replace(/\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)/g, (_, target, anchor = "") => {
      const file = posix.normalize(posix.join(posix.dirname(source), target)).replace(/\/$/, "");
      const page = pages.get(file) ?? (files.has(file) ? posix.join("/", file.slice("docs/".length)) : undefined);
      if (page === undefined) throw new Error(`${source} links to ${file}, which is no page of the site`);
      return `](${page.startsWith("/") ? page : posix.join("/", page)}${anchor})`;
    }),
  );
}

/** Changes a Markdown text, but not its code. @param {string} text @param {(prose: string) => string} change */
export function outsideOfCode(text, change) {
  const parts = text.split(/(^```.*?^```[^\n]*$|`[^`\n]+`)/ms);
  return parts.map((part, index) => (index % 2 === 0 ? change(part) : part)).join("");
}

/**
 * The sections of the site: those of docs/README.md, with the pages that they list, and the pages for developers.
 * @returns {Promise<Section[]>}
 */
export async function readSections() {
  const list = "docs/README.md";
  const records = "docs/internals/README.md";
  const [users, developers] = await Promise.all([list, records].map((file) => readFile(join(root, file), "utf8")));
  const sections = /** @type {string} */ (users)
    .split(/^## /m)
    .slice(1)
    .map((section) => {
      const title = section.slice(0, section.indexOf("\n")).trim();
      return { title, entries: section.split("\n").flatMap((line) => entriesOf(line, list)) };
    });
  const last = /** @type {Section} */ (sections.at(-1));
  const known = new Set(last.entries.map(({ path }) => path));
  last.entries.push(...entriesOf(/** @type {string} */ (developers), records).filter(({ path }) => !known.has(path)));
  return sections;
}

/** The pages that a row of a table, or another text, links to. @param {string} text @param {string} source @returns {Entry[]} */
function entriesOf(text, source) {
  const [, cell = text, about = ""] = /^\| (\[.*?) \| (.*?) \|$/.exec(text) ?? [];
  const links = [...cell.matchAll(/\[([^\]]+)\]\(([^)]+)\)/g)];
  const first = links[0]?.[1] ?? "";
  return links.map(([, name = "", target = ""]) => ({
    // A page of rules is listed behind the page that it belongs to.
    title: capital(name.startsWith("its ") ? `${first}: ${name}` : name),
    path: sitePath(posix.join(posix.dirname(source), target)),
    about: about.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1"),
  }));
}

/** @param {string} text */
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** A document's path in the site. @param {string} source  its path in the repository */
function sitePath(source) {
  const other = Object.entries(OTHERS).find(([, from]) => from === source)?.[0];
  return other ?? RENAMED[/** @type {keyof typeof RENAMED} */ (source)] ?? source.replace(/^docs\//, "");
}

// The pages of the documentation site: where each comes from, and their order, which is the order of docs/README.md.
import { posix } from "node:path";
import { root } from "../project.mjs";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";

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
  const sources = new Map(
    docs.filter((file) => file.endsWith(".md")).map((file) => [file, file.slice("docs/".length)]),
  );
  for (const [path, source] of Object.entries(OTHERS)) sources.set(source, path);
  for (const [source, path] of Object.entries(RENAMED)) sources.set(source, path);
  sources.set("LICENSES", "licences.md");
  /** Other files that pages link to, which the site serves as they are. */
  const files = new Set(docs.filter((file) => /\.(png|ipynb)$/.test(file)));

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

/** The sections of docs/README.md, with the pages that their tables list. @param {string} readme @returns {Section[]} */
export function readSections(readme) {
  return readme
    .split(/^## /m)
    .slice(1)
    .map((section) => {
      const title = section.slice(0, section.indexOf("\n")).trim();
      const rows = [...section.matchAll(/^\| (\[.*?) \| (.*?) \|$/gm)];
      const listed =
        rows.length > 0 ? rows : [...section.matchAll(/^(.*\]\(.*)$/gm)].map((line) => [line[0], line[0], ""]);
      const entries = listed.flatMap(([, cell = "", about = ""]) =>
        [...cell.matchAll(/\[([^\]]+)\]\(([^)]+)\)/g)].map(([, name = "", path = ""]) => ({
          title: name.charAt(0).toUpperCase() + name.slice(1),
          path: path.replace(/^\//, ""),
          about: about.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1"),
        })),
      );
      return { title, entries };
    });
}

// What a Markdown document holds, as far as checks of texts need it.
import { posix } from "node:path";

/** A document without its blocks of code. @param {string} text */
const withoutBlocks = (text) => text.replace(/^(```|~~~).*?^\1[^\n]*$/gms, "");

/** The targets of links and pictures that are files of the repository. @param {string} text @returns {string[]} */
export function links(text) {
  const prose = withoutBlocks(text).replace(/`[^`\n]*`/g, "");
  return [...prose.matchAll(/\]\(<?([^)>\s]+)>?\)/g)]
    .map(([, target = ""]) => target)
    .filter((target) => !/^[a-z]+:/.test(target));
}

/** The name of a heading in links, as GitHub makes it. @param {string} heading  without its links */
export const slug = (heading) =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}_\- ]/gu, "")
    .replaceAll(" ", "-");

/** The names that links may have behind `#`, as GitHub makes them of headings. @param {string} text @returns {Set<string>} */
export function anchors(text) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return new Set(
    [...withoutBlocks(text).matchAll(/^#{1,6} (.*)$/gm)].map(([, heading = ""]) => {
      const name = slug(heading.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1"));
      const times = seen.get(name) ?? 0;
      seen.set(name, times + 1);
      return times === 0 ? name : `${name}-${times}`;
    }),
  );
}

/**
 * The links of documents that lead nowhere.
 * @param {Map<string, string>} documents  texts by their paths
 * @param {Set<string>} files  all files that links may lead to
 */
export function brokenLinks(documents, files) {
  const exists = (/** @type {string} */ path) =>
    files.has(path) || [...files].some((file) => file.startsWith(`${path}/`));
  return [...documents].flatMap(([path, text]) =>
    links(text).flatMap((link) => {
      const [target = "", anchor] = link.split("#");
      const file = target === "" ? path : posix.normalize(posix.join(posix.dirname(path), target)).replace(/\/$/, "");
      if (!exists(file)) return [`${path}: ${link}`];
      const other = documents.get(file);
      return anchor === undefined || other === undefined || anchors(other).has(anchor) ? [] : [`${path}: ${link}`];
    }),
  );
}

/** Code that stands within a text. @param {string} text @returns {string[]} */
export const codeSpans = (text) => [...withoutBlocks(text).matchAll(/`([^`\n]+)`/g)].map(([, code = ""]) => code);

/**
 * The sentences of a document: of its paragraphs, items of lists, and cells of tables. Code within a sentence counts as a word.
 * @param {string} text
 * @returns {string[]}
 */
export function sentences(text) {
  const prose = withoutBlocks(text)
    .replace(/`+[^`]*`+/g, "code")
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .replace(/[*_]{2}/g, "");
  const parts = prose
    .split(/\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=[|#])/)
    .flatMap((part) => (part.startsWith("|") ? part.split("|") : [part]));
  return parts
    .flatMap((part) => part.replace(/\s+/g, " ").split(/(?<=[.!?])\s/))
    .map((sentence) => sentence.trim())
    .filter((sentence) => sentence !== "");
}

/** @param {string} sentence */
export const wordCount = (sentence) => sentence.split(" ").filter((word) => /[\p{L}\p{N}]/u.test(word)).length;

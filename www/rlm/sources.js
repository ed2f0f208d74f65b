// The sources of a question: files, a pasted text, or the sample. The sandbox reads the files, not this page.

import { count } from "../format.js";
import { harbourLogPeek, harbourLogSlowly } from "../sample.js";

/**
 * @typedef {object} Source
 * @property {string} name
 * @property {string} size
 * @property {() => Promise<File | string>} open
 * @property {() => Promise<string>} peek
 */

const SAMPLE_LINES = 60_000;
const PEEK_BYTES = 2_000;

/** A text of about 1.3 million tokens, more than a prompt can hold. @type {Source} */
export const SAMPLE = {
  name: "Harbour log",
  size: `generated on this page, ${count(SAMPLE_LINES, "line")}`,
  open: () => harbourLogSlowly(SAMPLE_LINES),
  peek: async () => harbourLogPeek(SAMPLE_LINES),
};

/** @param {File} file @returns {Source} */
export const fileSource = (file) => ({
  name: file.name,
  size: bytes(file.size),
  open: async () => file,
  peek: async () => (await file.slice(0, PEEK_BYTES).text()).replaceAll("\0", "·"),
});

/** @param {string} text @returns {Source} */
export const textSource = (text) => ({
  name: "Pasted text",
  size: count(text.length, "character"),
  open: async () => text,
  peek: async () => text.slice(0, PEEK_BYTES),
});

/** The value of `context`: a single text or file as it is, several as a dict by name. @param {Source[]} sources */
export async function contextOf(sources) {
  const [first, ...others] = sources;
  if (!first) return "";
  if (others.length === 0) return first.open();
  /** @type {Map<string, File | string>} */
  const named = new Map();
  for (const source of sources) {
    let name = source.name;
    for (let n = 2; named.has(name); n++) name = `${source.name} (${n})`;
    named.set(name, await source.open());
  }
  return Object.fromEntries(named);
}

/** The sources of a value of `context`: the opposite of `contextOf`. @param {unknown} context */
export function sourcesOf(context) {
  const sourceOf = (/** @type {unknown} */ value, name = "") =>
    value instanceof Blob ? fileSource(new File([value], nameOf(value) || name || "file")) : textSource(String(value));
  if (typeof context === "string" || context instanceof Blob) return [sourceOf(context)];
  return Object.entries(/** @type {object} */ (context ?? {})).map(([name, value]) => sourceOf(value, name));
}

/** @param {Blob} blob */
const nameOf = (blob) => (blob instanceof File ? blob.name : "");

/** @param {number} size */
function bytes(size) {
  if (size < 1e3) return count(size, "byte");
  return size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`;
}

/** Tells recorded runs from other files. @param {File} file */
export async function isTrajectory(file) {
  if (!/\.(jsonl|ndjson)$/i.test(file.name)) return false;
  const start = await file.slice(0, 20_000).text();
  return /^\s*\{[^\n]*"type":\s*"runStarted"/.test(start);
}

/** The files of a drop, and the number of folders, which cannot be read. @param {DataTransfer} data */
export function droppedFiles(data) {
  const files = [];
  let folders = 0;
  for (const item of data.items) {
    if (item.kind !== "file") continue;
    if (item.webkitGetAsEntry?.()?.isDirectory) folders++;
    else files.push(item.getAsFile());
  }
  return { files: files.filter((file) => file !== null), folders };
}

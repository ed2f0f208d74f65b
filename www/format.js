// Numbers, times and values as short texts for people.

const numbers = new Intl.NumberFormat("en");

/** A number with its unit: `1,234 characters`. @param {number} n @param {string} unit @param {string} [plural] */
export function count(n, unit, plural = `${unit}s`) {
  return `${numbers.format(n)} ${n === 1 ? unit : plural}`;
}

/** A duration: `12 ms`, `3.4 s`, `2 min 5 s`, `10 min`. @param {number} ms */
export function time(ms) {
  if (ms < 999.5) return `${ms < 9.95 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor((ms % 60_000) / 1000);
  return `${Math.floor(ms / 60_000)} min${seconds > 0 ? ` ${seconds} s` : ""}`;
}

/** The first `max` characters, and the number of those left out. @param {string} text @param {number} max */
export function clip(text, max) {
  return text.length <= max ? text : `${text.slice(0, max)}\n⋯ ${count(text.length - max, "more character")} ⋯`;
}

/** Bounds of the preview of one value. */
const MAX_CHARS = 6_000;
const MAX_ITEMS = 60;
const MAX_DEPTH = 6;

/**
 * A value from Python as a text of bounded length.
 * @param {unknown} value
 */
export function preview(value) {
  return clip(typeof value === "string" ? value : describe(value, 0), MAX_CHARS);
}

/** @param {unknown} value @param {number} depth @returns {string} */
function describe(value, depth) {
  if (typeof value === "string") return JSON.stringify(clip(value, MAX_CHARS));
  if (typeof value === "bigint") return String(value);
  if (typeof value !== "object" || value === null) return String(value);
  if (value instanceof Date) return value.toISOString();
  if (depth >= MAX_DEPTH) return "…";
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
    const items = /** @type {Uint8Array} */ (value);
    return `${items.constructor.name} ${bracket("[]", Array.from(items.subarray(0, MAX_ITEMS), String), items.length)}`;
  }
  const more = (/** @type {unknown} */ item) => describe(item, depth + 1);
  if (Array.isArray(value)) return bracket("[]", value.slice(0, MAX_ITEMS).map(more), value.length);
  if (value instanceof Set) return `Set ${bracket("{}", first(value).map(more), value.size)}`;
  const pair = (/** @type {[unknown, unknown]} */ [key, item]) => `${more(key)}: ${more(item)}`;
  if (value instanceof Map) return `Map ${bracket("{}", first(value).map(pair), value.size)}`;
  const entries = Object.entries(value);
  return bracket("{}", entries.slice(0, MAX_ITEMS).map(pair), entries.length);
}

/** @template T @param {Iterable<T>} items @returns {T[]} */
function first(items) {
  const found = [];
  for (const item of items) if (found.push(item) === MAX_ITEMS) break;
  return found;
}

/** Items in brackets, on one line if they are short. @param {string} ends @param {string[]} parts @param {number} total */
function bracket([open, close], parts, total) {
  if (total > parts.length) parts.push(`… ${numbers.format(total - parts.length)} more`);
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length <= 72 && !line.includes("\n")) return line;
  return `${open}\n${parts.map((part) => `  ${part.replaceAll("\n", "\n  ")}`).join(",\n")}\n${close}`;
}

// The doc comments of sources.

/**
 * The doc comments and docstrings of a file, and its header, by their first lines. Comments that only say types are left out.
 * @param {string} extension  .rs, .py, .js or .mjs
 * @param {string} source
 * @returns {{ line: number, text: string }[]}
 */
export function docBlocks(extension, source) {
  const lines = source.split("\n").map((line) => line.trim());
  const texts = { ".rs": rust, ".py": python, ".js": javascript, ".mjs": javascript }[extension];
  if (!texts) return [];
  return lines.flatMap((line, index) => {
    const text = texts(line, lines[index - 1] ?? "");
    return text === undefined || text.startsWith("@") ? [] : [{ line: index + 1, text }];
  });
}

/** @param {string} line @param {string} before @returns {string | undefined} the text, where a block begins */
function rust(line, before) {
  const [, mark = "", text] = /^(\/\/[/!])(?!\/) ?(.*)/.exec(line) ?? [];
  return before.startsWith(mark) ? undefined : text;
}

/** @param {string} line */
function python(line) {
  return /^[rf]?"""(.+)/.exec(line)?.[1];
}

/** @param {string} line @param {string} before  empty above the first line, whose comment is the file's header */
function javascript(line, before) {
  if (before === "/**") return line.replace(/^\* ?/, "");
  const isHeader = before === "" && /^\/\/ /.test(line);
  return isHeader ? line.slice(3) : /^\/\*\* (.*)/.exec(line)?.[1];
}

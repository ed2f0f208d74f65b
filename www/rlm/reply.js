// A model's reply as it is shown: prose and code. The code that runs is chosen elsewhere (crates/rlm/src/parse.rs).

/** @typedef {{ kind: "prose" | "code", text: string }} Segment */

const FENCE = /^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^`]*$/;
const LANGUAGES = new Set(["repl", "python", "py", "python3"]);

/** Splits a reply, or its beginning, into prose and code. @param {string} reply @returns {Segment[]} */
export function segments(reply) {
  /** @type {Segment[]} */
  const found = [];
  let [prose, code] = ["", ""];
  /** The fence that will close the code. @type {string | undefined} */
  let fence;
  const add = (/** @type {Segment["kind"]} */ kind, /** @type {string} */ text) => {
    if (text.trim()) found.push({ kind, text: text.replace(/^\n+|\s+$/g, "") });
  };
  for (const line of reply.split("\n")) {
    if (fence !== undefined) {
      const mark = line.trim();
      if (mark.startsWith(fence) && mark === mark.charAt(0).repeat(mark.length)) {
        add("code", code);
        [code, fence] = ["", undefined];
      } else code += `${line}\n`;
      continue;
    }
    const [, mark, language] = FENCE.exec(line) ?? [];
    if (mark && LANGUAGES.has(String(language).toLowerCase())) {
      add("prose", prose);
      [prose, fence] = ["", mark];
    } else prose += `${line}\n`;
  }
  if (fence !== undefined) add("code", code);
  else add("prose", prose);
  return found;
}

// Reads a recorded trajectory: Markdown with one `## step` per turn, and in it the reasoning and the Python code.

/**
 * @typedef {{ title: string, reasoning: string, code: string }} Step
 * @typedef {{ question: string, steps: Step[] }} Trajectory  `question` is the file's `> quotation`, if it has one
 */

/** @param {string} markdown @returns {Trajectory} */
export function parseTrajectory(markdown) {
  const [head = "", ...sections] = markdown.split(/^## /m);
  return {
    question: oneLine([...head.matchAll(/^> (.*)$/gm)].map(([, line]) => line).join(" ")),
    steps: sections.map(parseStep),
  };
}

/** @param {string} section @returns {Step} */
function parseStep(section) {
  const [, title = "", reasoning = "", code = ""] = section.match(/^(.*)\n([^]*?)```python\n([^]*?)```/) ?? [];
  if (!code) throw new Error(`a step of the trajectory has no Python: ${section.slice(0, 60)}`);
  return { title: title.trim(), reasoning: oneLine(reasoning), code: code.trimEnd() };
}

/** @param {string} text */
function oneLine(text) {
  return text.replace(/\s+/g, " ").trim();
}

// The page's summary of a run, of which the demo takes a screenshot.

/**
 * @import { CodeExecution } from "../dist/index.js"
 *
 * @typedef {Pick<CodeExecution, "stdout" | "stderr" | "outcome" | "error" | "traceback" | "duration" | "guestTime" | "hostCalls" | "result">} Ran
 * @typedef {object} SummaryStep
 * @property {number} depth
 * @property {string} label  the step's number, such as 5.1
 * @property {string} title
 * @property {string} reasoning
 * @property {Ran} [run]
 * @property {number} [peak]  most questions open at the same time
 *
 * @typedef {object} Summary
 * @property {string} question
 * @property {string} text
 * @property {string} model
 * @property {string} place
 * @property {SummaryStep[]} steps
 * @property {string[]} answer
 * @property {boolean} right
 * @property {number} seconds
 */

/** @param {Summary} summary */
export function showSummary({ question, text, model, place, steps, answer, right, seconds }) {
  const longest = Math.max(...steps.map(({ run }) => run?.duration ?? 0));
  document.body.replaceChildren(
    element(
      "header",
      "",
      element("h1", "", "Sandglass"),
      element("p", "", "a long text, explored by Python in a browser tab"),
    ),
    element("p", "question", question),
    element(
      "section",
      `answer ${right ? "right" : "wrong"}`,
      element("div", "", ...answer.map((line) => element("p", "", line))),
      element("strong", "", right ? "✔ right" : "✘ wrong"),
    ),
    element("ol", "", ...steps.map((step) => row(step, longest))),
    element("dl", "", ...facts({ text, "sub-model": model, sandbox: place, took: `${seconds.toFixed(1)} s` })),
  );
}

/** @param {SummaryStep} step @param {number} longest  ms of the slowest step, which has a full bar */
function row({ depth, label, title, reasoning, run, peak }, longest) {
  const bar = element("i", "bar");
  bar.style.width = `${Math.max(0.6, (100 * (run?.duration ?? 0)) / longest)}%`;
  const calls = run?.hostCalls ? `${run.hostCalls} host call${run.hostCalls > 1 ? "s" : ""}` : "";
  const atOnce = peak && peak > 1 ? `, ${peak} at once` : "";
  return element(
    "li",
    depth > 0 ? "child" : "",
    element("b", "number", label),
    element("div", "", element("h2", "", title), element("p", "", reasoning), element("code", "", firstLine(run))),
    element(
      "div",
      "times",
      element("span", "", run ? time(run.duration) : "–"),
      element("small", "", calls + atOnce),
      bar,
    ),
  );
}

/** The first line of a step's output, which says most. @param {Ran} [run] */
function firstLine(run) {
  return run?.stdout.split("\n")[0]?.replace(/:$/, "") || run?.error || "";
}

/** @param {Record<string, string>} entries */
function facts(entries) {
  return Object.entries(entries).flatMap(([term, text]) => [element("dt", "", term), element("dd", "", text)]);
}

/** @param {number} ms */
function time(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} className
 * @param {...(Node | string)} children
 */
function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

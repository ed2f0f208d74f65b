// The result of an execution: its value, its error, its outcome in plain words, and the state after it.

import { el } from "./dom.js";
import { clip, count, preview, time } from "./format.js";

/** @import { CodeExecution, LostVariable } from "../pkg/sandglass.js" */

const MAX_CHARS = 20_000;
const MAX_NAMES = 60;

/**
 * The elements below an execution's output.
 * @param {CodeExecution} run
 * @param {number} [timeout]  the execution's time limit in milliseconds, if known
 * @returns {HTMLElement[]}
 */
export function describeRun(run, timeout) {
  const parts = [];
  if (run.result !== undefined) parts.push(valueOf(run.result, run.displays?.length > 0));
  if (run.final) parts.push(labelled("final answer", preview(run.final.value), "final"));
  if (run.error !== undefined && run.outcome === "error") {
    const failure = el("div", { class: "failure" }, el("p", { text: clip(run.error, 2_000) }));
    if (run.traceback) {
      const trace = el("pre", { text: clip(run.traceback, MAX_CHARS), tabindex: "0" });
      failure.append(el("details", {}, el("summary", { text: "Traceback" }), trace));
    }
    parts.push(failure);
  }
  parts.push(outcome(run, timeout));
  return parts;
}

/** A value as text, folded if it is long and shown in a richer form as well. @param {string} text @param {boolean} isShown */
function valueOf(text, isShown) {
  const value = labelled("value", text, "value");
  if (!isShown || (text.length <= 200 && text.split("\n").length <= 3)) return value;
  return el("details", {}, el("summary", { text: "Value as text" }), value);
}

/** A text with its label above it. @param {string} label @param {string} text @param {string} [kind]  for style sheets */
export function labelled(label, text, kind) {
  const value = el("pre", { text: clip(text, MAX_CHARS) || "(empty)", tabindex: "0" });
  return el(
    "div",
    { class: kind ? `labelled ${kind}` : "labelled" },
    el("span", { class: "label", text: label }),
    value,
  );
}

/** @param {CodeExecution} run @param {number} [timeout] */
function outcome(run, timeout) {
  const facts = [`${time(run.guestTime)} of Python`];
  if (run.duration - run.guestTime > 50) facts.push(`${time(run.duration)} in all`);
  if (run.hostCalls > 0) facts.push(count(run.hostCalls, "host call"));
  const left = run.truncated.stdout + run.truncated.stderr;
  if (left > 0) facts.push(`${count(left, "character")} of output left out`);
  const footer = el(
    "footer",
    { class: "outcome" },
    el("span", { class: `badge ${run.outcome}`, text: run.outcome }),
    el("span", { class: "facts", text: facts.join(" · ") }),
  );
  const words = [why(run, timeout), stateOf(run)].filter(Boolean).join(" ");
  if (words) footer.append(el("p", { class: "words", text: words }));
  const lost = run.state.lost ?? [];
  if (lost.length > 0) footer.append(lostNames(lost));
  return footer;
}

/** @param {CodeExecution} run @param {number} [timeout] */
function why({ outcome, error }, timeout) {
  switch (outcome) {
    case "timeout":
      return `The time limit${timeout === undefined ? "" : ` of ${time(timeout)}`} was reached, so the code was stopped.`;
    case "interrupted":
      return "You stopped it.";
    case "crashed":
      return `Python crashed${error ? `: ${clip(error, 500)}.` : "."}`;
    case "limit":
      return `The code reached a limit of the sandbox${error ? `: ${clip(error, 500)}.` : "."}`;
    default:
      return "";
  }
}

/** @param {CodeExecution} run */
function stateOf({ outcome, state }) {
  if (state.status === "restored") {
    return `Python was restarted and its variables are as they were after run ${state.restoredTo}.`;
  }
  if (state.status === "lost") {
    const how =
      outcome === "crashed" ? "It was restarted." : "The code did not stop, so Python was ended and restarted.";
    const names = state.lost?.length ? ", and so are:" : ".";
    return `${how} The context is kept; what this cell assigned is gone${names}`;
  }
  return outcome === "ok" || outcome === "error" ? "" : "All variables are kept.";
}

/** @param {LostVariable[]} lost */
function lostNames(lost) {
  const items = lost
    .slice(0, MAX_NAMES)
    .map(({ name, reason }) => el("li", { title: reason }, el("code", { text: name })));
  if (lost.length > MAX_NAMES) items.push(el("li", { text: `and ${lost.length - MAX_NAMES} more` }));
  return el("ul", { class: "lost" }, ...items);
}

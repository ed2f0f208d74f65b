// The demo's output: plain lines in a log; colours and one live line on a terminal.

/**
 * @import { StepBegins } from "./page.js"
 * @import { Ran } from "./summary.js"
 *
 * @typedef {{ asked: number, done: number, failed: number, peak: number, ms: number, error?: string }} Activity
 *   counts of the questions to the sub-model during one step; `ms` is the sum of their durations
 * @typedef {{ step: StepBegins, activity: Activity, said: number, saidAt: number }} Running
 */

const WIDTH = 100;
/** Indentation of the sub-RLM's lines, in columns. */
const INDENT = 5;
const MAX_OUTPUT_LINES = 22;
const SPINNER = [..."⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"];

export class Terminal {
  #live;
  #colour;
  /** The running steps; the sub-RLM's is the last. @type {Running[]} */
  #running = [];
  /** @type {NodeJS.Timeout | undefined} */
  #ticker;
  #waiting = "";
  #since = 0;

  /** @param {NodeJS.WriteStream} out */
  constructor(out) {
    this.out = out;
    this.#live = Boolean(out.isTTY) && !process.env.CI;
    this.#colour = this.#live && !process.env.NO_COLOR;
  }

  bold = (/** @type {string} */ text) => this.#paint(1, text);
  dim = (/** @type {string} */ text) => this.#paint(2, text);
  red = (/** @type {string} */ text) => this.#paint(31, text);
  green = (/** @type {string} */ text) => this.#paint(32, text);
  #cyan = (/** @type {string} */ text) => this.#paint(36, text);

  /** @param {string} [text] */
  line(text = "") {
    this.#clear();
    this.out.write(`${text}\n`);
  }

  /** A label and its text, wrapped. @param {string} label @param {string} text */
  field(label, text) {
    wrap(text, WIDTH - 12).forEach((part, index) => this.line(`  ${this.dim((index ? "" : label).padEnd(10))}${part}`));
  }

  /** Shows a live line about the current wait, until `idle`. On a terminal only. @param {string} what */
  wait(what) {
    this.#waiting = what;
    this.#since = Date.now();
    if (this.#live) this.#ticker ??= setInterval(() => this.#draw(), 100).unref();
  }

  idle() {
    clearInterval(this.#ticker);
    this.#ticker = undefined;
    this.#clear();
  }

  /** Reports that the sub-RLM's sandbox has started. @param {number} bootMs */
  childStarted(bootMs) {
    this.#stepLine(1);
    this.#stepLine(1, this.dim(`a sandbox of its own, started in ${ms(bootMs)}`));
    this.wait("Python runs");
  }

  /** Shows a step's title and code. Returns its number; a step of the sub-RLM has one like 5.1. @param {StepBegins} step */
  begin(step) {
    const number = [...this.#running.map(({ step }) => step.number), step.number].join(".");
    this.#stepLine(step.depth);
    this.#stepLine(step.depth, `${this.#cyan(this.bold(`${number}  ${step.title}`))}`);
    for (const part of wrap(step.reasoning, WIDTH - 3 - INDENT * step.depth)) this.#stepLine(step.depth, `   ${part}`);
    this.#stepLine(step.depth);
    for (const code of step.code.split("\n"))
      this.#stepLine(step.depth, this.dim(`   │ ${cut(code, WIDTH - 5 - INDENT * step.depth)}`.trimEnd()));
    const activity = { asked: 0, done: 0, failed: 0, peak: 0, ms: 0 };
    this.#running.push({ step, activity, said: 0, saidAt: Date.now() });
    this.wait("Python runs");
    return number;
  }

  /** @param {Ran} run @returns {Activity | undefined} */
  end(run) {
    const ended = this.#running.pop();
    if (!ended) return;
    const { activity, step } = ended;
    const depth = step.depth;
    this.#stepLine(depth);
    for (const text of bounded(run.stdout)) this.#stepLine(depth, `   ${cut(text, WIDTH - 3 - INDENT * depth)}`);
    for (const text of bounded(run.traceback ?? run.error ?? ""))
      this.#stepLine(depth, this.red(`   ${cut(text, WIDTH - 3 - INDENT * depth)}`));
    if (run.stdout || run.error) this.#stepLine(depth);
    this.#stepLine(depth, this.dim(`   ${times(run)}${activity.asked > 0 ? ` · ${summary(activity)}` : ""}`));
    if (activity.error) this.#stepLine(depth, this.red(`   ${activity.error}`));
    if (this.#running.length > 0) this.wait("Python runs");
    else this.idle();
    return activity;
  }

  /**
   * Counts a question to the sub-model. Returns a function to call when the question is over.
   * @param {number} open  number of unanswered questions, this one included
   */
  question(open) {
    const running = this.#running.at(-1);
    if (!running) return () => {};
    const { activity } = running;
    const begin = Date.now();
    activity.asked++;
    activity.peak = Math.max(activity.peak, open);
    return (/** @type {unknown} */ error = undefined) => {
      activity.done++;
      activity.ms += Date.now() - begin;
      if (error) {
        activity.failed++;
        activity.error ??= error instanceof Error ? error.message : String(error);
      }
      this.#progress(running);
    };
  }

  /** Reports progress in a log: one line per 10 %, and at most one per second. @param {Running} running */
  #progress(running) {
    const { activity, step } = running;
    if (this.#live || step.prompts === 0) return;
    const tenths = Math.floor((activity.done * 10) / step.prompts);
    if (tenths <= running.said || tenths > 9 || Date.now() - running.saidAt < 1000) return;
    running.said = tenths;
    running.saidAt = Date.now();
    this.#stepLine(
      step.depth,
      `   ${activity.done} of ${step.prompts} answers, ${activity.asked - activity.done} open`,
    );
  }

  #draw() {
    const { step, activity } = this.#running.at(-1) ?? {};
    const spinner = SPINNER[Math.floor(Date.now() / 100) % SPINNER.length];
    const asked = activity?.asked
      ? ` · ${bar(activity.done, step?.prompts ?? 0)} ${activity.done} answers, ${activity.asked - activity.done} open`
      : "";
    const indent = " ".repeat(INDENT * (step?.depth ?? 0));
    const seconds = ((Date.now() - this.#since) / 1000).toFixed(1);
    this.out.write(`\r\x1b[2K${indent}   ${this.#cyan(spinner ?? "")} ${this.#waiting} ${seconds} s${asked}`);
  }

  #clear() {
    if (this.#ticker) this.out.write("\r\x1b[2K");
  }

  /** Writes a line of a step; lines of the sub-RLM have a bar before them. @param {number} depth @param {string} [text] */
  #stepLine(depth, text = "") {
    this.line(depth > 0 ? `   ${this.#cyan("┃")} ${text}`.trimEnd() : text);
  }

  /** @param {number} code @param {string} text */
  #paint(code, text) {
    return this.#colour && text ? `\x1b[${code}m${text}\x1b[0m` : text;
  }
}

/** @param {Ran} run */
export function times({ guestTime, duration, hostCalls }) {
  const calls = hostCalls === 1 ? "1 host call" : `${hostCalls} host calls`;
  return `Python ${ms(guestTime)} · in all ${ms(duration)} · ${calls}`;
}

/** @param {number} value */
export function ms(value) {
  return value < 1000 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** @param {Activity} activity */
function summary({ done, failed, peak, ms: sum }) {
  const failures = failed > 0 ? `, ${failed} failed` : "";
  return `up to ${peak} at once, ${ms(sum / Math.max(done, 1))} per answer${failures}`;
}

/** @param {number} done @param {number} all */
function bar(done, all) {
  const full = all > 0 ? Math.min(20, Math.round((done * 20) / all)) : 0;
  return all > 0 ? "█".repeat(full) + "░".repeat(20 - full) : "";
}

/** The first and last lines of an output. @param {string} text */
function bounded(text) {
  const lines = text
    .trimEnd()
    .split("\n")
    .map((line) => line.trimEnd());
  if (lines.length <= MAX_OUTPUT_LINES) return text ? lines : [];
  const half = Math.floor(MAX_OUTPUT_LINES / 2);
  return [...lines.slice(0, half), `… ${lines.length - 2 * half} more lines`, ...lines.slice(-half)];
}

/** @param {string} text @param {number} width */
function cut(text, width) {
  return text.length > width ? `${text.slice(0, width - 1)}…` : text;
}

/** @param {string} text @param {number} width */
function wrap(text, width) {
  return text.match(new RegExp(`\\S.{0,${width - 1}}(?=\\s|$)`, "g")) ?? [];
}

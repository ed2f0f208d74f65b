// The first view: a question, the run that answers it, and recordings of runs.

import { createSandbox } from "../../pyodide-glue/index.js";
import { replayRlm, runRlm } from "../../pyodide-glue/rlm.js";
import { byId } from "../dom.js";
import { count } from "../format.js";
import { STAGES, setPython } from "../python-status.js";
import { Composer } from "./composer.js";
import { forgetQuestion, noteQuestion, unfinishedQuestion } from "./kept-question.js";
import { Live, Player } from "./player.js";
import { PlayerControls } from "./player-controls.js";
import { builtInPolicy } from "./policy.js";
import { SAMPLE, contextOf, sourcesOf } from "./sources.js";
import { Recorder, readTrajectory, toBlob } from "./trajectory.js";
import { MAX_TITLE_CHARS, RunView } from "./view.js";

/** @import { RlmEndpoint, RlmOptions } from "../../pkg/sandglass.js" */
/** @import { Stage } from "../python-status.js" */
/** @import { RunEvent } from "./state.js" */

/**
 * @typedef {object} Recording
 * @property {RunEvent[]} events
 * @property {(() => Promise<unknown>) | undefined} context  makes the value that the run was about, if known
 */

const BUILT_IN = "driven by the built-in policy: a fixed script that writes Python, not an LLM";

/** The first view. It runs questions, and shows and repeats recordings. */
export class Ask {
  #endpoint;
  /** @type {AbortController | undefined} */
  #abort;
  /** The run on show. @type {Recording | undefined} */
  #recording;
  /** Counts the runs shown, so that a recording that loads slowly does not replace a newer run. */
  #shown = 0;

  #run = /** @type {HTMLButtonElement} */ (byId("ask-run"));
  #export = /** @type {HTMLButtonElement} */ (byId("run-export"));
  #again = /** @type {HTMLButtonElement} */ (byId("run-again"));
  #stops = /** @type {HTMLButtonElement[]} */ ([byId("ask-stop"), byId("run-stop")]);
  #kind = byId("run-kind");
  #title = byId("run-title");
  #verdict = byId("run-verdict");
  #view = new RunView(() => this.#controls.update());
  #controls = new PlayerControls(this.#view);
  #composer = new Composer({ onRun: () => void this.run(), onRecording: (file) => void this.#open(file) });

  /** @param {() => RlmEndpoint | undefined} endpoint  the chosen endpoint; without one, the built-in policy drives runs */
  constructor(endpoint) {
    this.#endpoint = endpoint;
    this.#run.addEventListener("click", () => void this.run());
    for (const stop of this.#stops) stop.addEventListener("click", () => this.#abort?.abort());
    byId("ask-watch").addEventListener("click", () => void this.#showSample("sample played"));
    this.#export.addEventListener("click", () => this.#save());
    this.#again.addEventListener("click", () => void this.#runAgain());
    const file = /** @type {HTMLInputElement} */ (byId("recording-file"));
    file.addEventListener("change", () => {
      const [chosen] = file.files ?? [];
      file.value = "";
      if (chosen) void this.#open(chosen);
    });
    this.#enable();
  }

  /** Prepares the view when it is opened for the first time. */
  open() {
    void this.#goOn();
    void warmUp();
  }

  /** Goes on with the question that a reload has cut off. Shows the sample if there is none. */
  async #goOn() {
    const unfinished = await unfinishedQuestion();
    if (this.#abort) return; // somebody was faster
    if (!unfinished) return void this.#showSample("sample shown");
    const { options, by, isSample, context } = unfinished;
    this.#composer.restore(options, isSample ? [SAMPLE] : sourcesOf(context));
    if (by === nameOf(this.#endpoint())) return void this.run();
    // The page does not keep keys.
    this.#composer.problem("model", `Choose the model ${by} again and ask: the question goes on where it was.`);
  }

  /** Answers the question. */
  async run() {
    if (this.#abort || this.#run.disabled) return;
    const asked = this.#composer.read();
    if (!asked) return;
    const endpoint = this.#endpoint();
    const kind = endpoint ? `Live, driven by ${endpoint.model || "a model"}` : `Live, ${BUILT_IN}`;
    const model = endpoint ?? builtInPolicy;
    const isSample = this.#composer.sources[0] === SAMPLE;
    this.#run.disabled = true;
    const persist = await noteQuestion({ options: asked.options, by: nameOf(endpoint), isSample });
    const run = await this.#live(kind, { ...asked.options, model }, asked.context, persist);
    const came = run?.kept?.replies ?? 0;
    if (came > 0) this.#tell(`It went on from ${count(came, "reply", "replies")} of before.`, "same");
    // One that was stopped, failed or met a limit goes on when it is asked again.
    const isOver = run?.outcome === "answered" || run?.outcome === "exhausted";
    if (persist && isOver) await forgetQuestion();
  }

  /**
   * Runs a question now and shows it as it goes.
   * @param {string} kind @param {RlmOptions} options @param {() => Promise<unknown>} context
   * @param {string} [persist]  the name under which the browser keeps it, if it can
   */
  async #live(kind, options, context, persist) {
    const abort = (this.#abort = new AbortController());
    const [live, recorder] = [new Live(), new Recorder()];
    this.#present(kind, options.task, { events: recorder.events, context });
    this.#view.show(live);
    this.#enable();
    this.#scroll();
    const onEvent = (/** @type {RunEvent} */ event) => {
      recorder.add(event);
      live.push(event);
    };
    try {
      const value = await context();
      abort.signal.throwIfAborted();
      const sandbox = {
        onProgress: (/** @type {{ stage: string }} */ { stage }) => this.#progress(stage, recorder.events),
      };
      const run = { ...options, context: value, sandbox, signal: abort.signal };
      return await runRlm({ ...run, persist, onEvent: /** @type {any} */ (onEvent) });
    } catch (error) {
      if (abort.signal.aborted && recorder.events.length === 0)
        this.#composer.problem("run", "Stopped before it began.");
      else this.#composer.refused(error instanceof Error ? error.message : String(error));
      if (recorder.events.length === 0) this.#present();
    } finally {
      live.end();
      this.#view.wake();
      this.#abort = undefined;
      this.#enable();
    }
  }

  /** Shows how far Python's start is, before the run's first turn. @param {string} stage @param {RunEvent[]} events */
  #progress(stage, events) {
    if (!isStage(stage) || events.some(({ type }) => type === "turnStarted")) return;
    this.#view.stage.starting(stage);
  }

  /** Runs the shown recording again: Python runs, and the recorded replies stand in for the model. */
  async #runAgain() {
    const recording = this.#recording;
    const [start] = recording?.events ?? [];
    if (!recording || this.#abort || start?.type !== "runStarted") return;
    const { task, maxDepth, maxIterations, answerSchema } = start;
    const calls = recording.events.filter(({ type }) => type === "callStarted").length;
    const context = recording.context ?? (() => contextOf(this.#composer.sources));
    // A replay needs no streamed pieces.
    const lines = await toBlob(recording.events.filter(({ type }) => type !== "text" && type !== "output")).text();
    const run = await this.#live(
      "Run again: Python runs now, the model's replies are those of the recording",
      { task, maxDepth, maxIterations, answerSchema, model: replayRlm(lines), budget: { maxCalls: 500 + calls } },
      context,
    );
    if (run) this.#compare(recording.events, this.#recording?.events ?? []);
  }

  /** Compares the answers of two runs, and shows the outcome. @param {RunEvent[]} before @param {RunEvent[]} now */
  #compare(before, now) {
    const answerOf = (/** @type {RunEvent[]} */ events) => {
      const end = events.findLast(({ type, run }) => type === "runEnded" && run === "0");
      return end?.type === "runEnded" ? JSON.stringify([end.outcome, end.answer]) : undefined;
    };
    const contextsOf = (/** @type {RunEvent[]} */ [start]) =>
      start?.type === "runStarted" ? JSON.stringify(start.contexts) : undefined;
    const isSame = answerOf(before) === answerOf(now);
    const isOther = contextsOf(before) !== contextsOf(now);
    const words = [isSame ? "Same answer as in the recording." : "Not the answer of the recording."];
    if (isOther) words.push("What it was given is not what the recording was about: choose the same files first.");
    this.#tell(words.join(" "), isSame ? "same" : "other");
  }

  /** Says something about the run that is over. @param {string} words @param {"same" | "other"} state */
  #tell(words, state) {
    this.#verdict.textContent = words;
    this.#verdict.dataset.state = state;
    this.#verdict.hidden = false;
  }

  // ---- recordings ----

  /** @param {"sample shown" | "sample played"} from */
  async #showSample(from) {
    const url = new URL("../sample-run.jsonl", import.meta.url);
    const kind = `A recording of a run over the sample, ${BUILT_IN}`;
    const read = async () => readTrajectory(await (await fetch(url)).blob());
    await this.#load(kind, read, SAMPLE.open, from);
  }

  /** @param {File} file */
  async #open(file) {
    await this.#load(`Recording: ${file.name}`, () => readTrajectory(file), undefined, "file");
  }

  /**
   * @param {string} kind
   * @param {() => Promise<RunEvent[]>} read
   * @param {Recording["context"]} context
   * @param {"file" | "sample shown" | "sample played"} from  all but "sample played" show the end first
   */
  async #load(kind, read, context, from) {
    if (this.#abort) return this.#composer.problem("run", "A run is under way: stop it first.");
    this.#composer.clearProblems();
    const shown = ++this.#shown;
    try {
      const events = await read();
      if (shown !== this.#shown) return;
      const [start] = events;
      this.#present(kind, start?.type === "runStarted" ? start.task : "", { events, context });
      const player = new Player(events, from === "sample played" ? 0 : events.length);
      this.#view.show(player);
      this.#controls.show(player);
      this.#enable();
      if (from === "file") this.#scroll();
      if (from !== "sample played") return;
      this.#controls.play();
      this.#scroll();
    } catch (error) {
      // Nobody asked for the sample, so a failure to load it needs no words.
      if (from === "sample shown") return;
      this.#composer.problem("run", `The recording cannot be opened: ${/** @type {Error} */ (error).message}.`);
    }
  }

  #save() {
    if (!this.#recording) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(toBlob(this.#recording.events));
    link.download = `sandglass-run-${new Date().toISOString().slice(0, 19).replace(/\D/g, "")}.jsonl`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  }

  /** Shows a run's title, or hides the run. @param {string} [kind] @param {string} [task] @param {Recording} [recording] */
  #present(kind, task = "", recording) {
    this.#shown++;
    this.#recording = recording;
    this.#controls.hide();
    this.#verdict.hidden = true;
    const section = byId("run");
    section.hidden = !recording;
    if (!recording) return;
    this.#kind.textContent = String(kind);
    this.#title.textContent = task.slice(0, MAX_TITLE_CHARS);
  }

  /** Brings the run into sight, where it begins below the window's upper half. */
  #scroll() {
    /** @type {HTMLDetailsElement} */ (byId("recordings")).open = false;
    if (byId("run").getBoundingClientRect().top < innerHeight * 0.6) return;
    const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    byId("run").scrollIntoView({ block: "start", behavior: isCalm ? "instant" : "smooth" });
  }

  #enable() {
    const isRunning = this.#abort !== undefined;
    this.#run.disabled = this.#run.hidden = isRunning;
    for (const stop of this.#stops) {
      stop.disabled = !isRunning;
      stop.hidden = !isRunning;
    }
    this.#export.hidden = this.#again.hidden = isRunning || !this.#recording?.events.length;
  }
}

/** The model's address and name; empty for the built-in policy. @param {RlmEndpoint | undefined} endpoint */
const nameOf = (endpoint) => (endpoint ? `${endpoint.model} at ${endpoint.baseUrl}` : "");

/** @param {string} stage @returns {stage is Stage} */
const isStage = (stage) => stage in STAGES;

/** Fetches Python and starts it once, so that the first run starts as fast as later ones. The header shows how far that is. */
async function warmUp() {
  const begun = { state: "booting", name: "starting" };
  setPython("ask", { ...begun, stage: "assets" });
  // The page is painted first.
  await new Promise((resolve) => setTimeout(resolve, 300));
  const onProgress = (/** @type {{ stage: string }} */ { stage }) => {
    if (isStage(stage) && stage !== "ready") setPython("ask", { ...begun, stage });
  };
  try {
    const sandbox = await createSandbox({ onProgress });
    const detail = `Python ${sandbox.capabilities.python}`;
    await sandbox.destroy();
    setPython("ask", { state: "ready", name: "ready", detail });
  } catch (error) {
    setPython("ask", { state: "failed", name: "could not start", detail: error instanceof Error ? error.message : "" });
  }
}

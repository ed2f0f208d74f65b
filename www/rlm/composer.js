// The form of a question: the question, its sources and its limits. A problem is shown beside its field.

import { byId, el, icon } from "../dom.js";
import { SAMPLE, contextOf, droppedFiles, fileSource, isTrajectory, textSource } from "./sources.js";

/** @import { RlmOptions } from "../../pkg/sandglass.js" */
/** @import { Source } from "./sources.js" */

const MAX_LISTED = 30;
const PEEK_CHARS = 300;

/** The field that shows an option's problem, by the beginning of the option's name. @type {[RegExp, string][]} */
const PLACES = [
  [/^task\b/, "question"],
  [/^answerSchema\b/, "schema"],
  [/^(model|subModel)\b/, "model"],
  [/^(maxDepth|maxIterations|budget)\b/, "limits"],
];

/** The form of a question. Its options are read when a run starts. */
export class Composer {
  /** @type {Source[]} */
  sources = [SAMPLE];
  #onRecording;
  #question = /** @type {HTMLTextAreaElement} */ (byId("question"));
  #schema = /** @type {HTMLTextAreaElement} */ (byId("schema"));
  #limits = /** @type {HTMLFormElement} */ (byId("limits"));
  #list = byId("sources");
  #peek = byId("source-peek");
  #zone = byId("drop");

  /** @param {{ onRun: () => void, onRecording: (file: File) => void }} listeners */
  constructor({ onRun, onRecording }) {
    this.#onRecording = onRecording;
    const file = /** @type {HTMLInputElement} */ (byId("ask-file"));
    file.addEventListener("change", () => {
      void this.#take([...(file.files ?? [])]);
      file.value = "";
    });
    byId("ask-sample").addEventListener("click", () => this.#use([SAMPLE]));
    const pasted = /** @type {HTMLTextAreaElement} */ (byId("ask-text"));
    byId("ask-paste-use").addEventListener("click", () => {
      /** @type {HTMLDetailsElement} */ (byId("ask-paste")).open = false;
      this.#use([textSource(pasted.value)]);
    });
    for (const example of byId("examples").querySelectorAll("button")) {
      example.addEventListener("click", () => {
        this.#question.value = example.textContent ?? "";
        this.#question.focus();
      });
    }
    this.#question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) onRun();
    });
    this.#limits.addEventListener("submit", (event) => event.preventDefault());
    this.#acceptDrops(byId("ask"));
    this.#show();
  }

  /** Reads the options of `runRlm`, without the model. Shows a problem and returns undefined if a field is wrong. */
  read() {
    this.clearProblems();
    const task = this.#question.value.trim();
    let isRight = true;
    if (!task) {
      this.problem("question", "Enter a question.");
      isRight = false;
    }
    if (!this.#limits.checkValidity()) {
      const field = /** @type {HTMLInputElement} */ (this.#limits.querySelector("input:invalid"));
      this.problem("limits", `${field.labels?.[0]?.firstChild?.textContent?.trim()}: ${field.validationMessage}`);
      isRight = false;
    }
    const schema = this.#readSchema();
    if (!isRight || schema.isWrong) return undefined;
    const limit = (/** @type {string} */ name) => {
      const field = /** @type {HTMLInputElement} */ (this.#limits.elements.namedItem(name));
      return field.value === "" ? undefined : field.valueAsNumber;
    };
    const seconds = limit("max-time");
    /** @type {Omit<RlmOptions, "model">} */
    const options = {
      task,
      maxDepth: limit("max-depth"),
      maxIterations: limit("max-iterations"),
      budget: {
        maxCalls: limit("max-calls"),
        maxTokens: limit("max-tokens"),
        maxCost: limit("max-cost"),
        maxTime: seconds === undefined ? undefined : 1000 * seconds,
      },
      answerSchema: schema.value,
    };
    const { sources } = this;
    return { options, context: () => contextOf(sources) };
  }

  /** Fills the form in again. @param {Omit<RlmOptions, "model">} options @param {Source[]} sources */
  restore({ task, maxDepth, maxIterations, budget = {}, answerSchema }, sources) {
    const { maxCalls, maxTokens, maxCost, maxTime } = budget;
    const seconds = maxTime === undefined ? undefined : maxTime / 1000;
    const limits = { "max-depth": maxDepth, "max-iterations": maxIterations, "max-calls": maxCalls };
    for (const [name, value] of Object.entries({
      ...limits,
      "max-tokens": maxTokens,
      "max-cost": maxCost,
      "max-time": seconds,
    })) {
      const field = /** @type {HTMLInputElement} */ (this.#limits.elements.namedItem(name));
      field.value = value === undefined ? "" : String(value);
    }
    this.#question.value = task;
    this.#schema.value = answerSchema === undefined ? "" : JSON.stringify(answerSchema, null, 2);
    this.#use(sources);
  }

  /** Shows the problem of an option. @param {string} message  the message of runRlm: `name: problem` */
  refused(message) {
    const place = PLACES.find(([name]) => name.test(message))?.[1] ?? "run";
    this.problem(place, message);
  }

  /** @param {string} place @param {string} text */
  problem(place, text) {
    const problem = byId(`${place}-problem`);
    problem.textContent = text;
    problem.hidden = false;
    if (place !== "question" && place !== "run") /** @type {HTMLDetailsElement} */ (byId("settings")).open = true;
    const field = document.querySelector(`[aria-describedby~="${problem.id}"]`);
    field?.setAttribute("aria-invalid", "true");
    if (field instanceof HTMLElement) field.focus();
  }

  clearProblems() {
    for (const problem of byId("ask").querySelectorAll(".problem")) {
      problem.textContent = "";
      /** @type {HTMLElement} */ (problem).hidden = true;
    }
    for (const field of byId("ask").querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  }

  #readSchema() {
    const text = this.#schema.value.trim();
    if (!text) return { isWrong: false, value: undefined };
    try {
      return { isWrong: false, value: /** @type {unknown} */ (JSON.parse(text)) };
    } catch (error) {
      this.problem("schema", `It is not JSON: ${/** @type {Error} */ (error).message}`);
      return { isWrong: true, value: undefined };
    }
  }

  // ---- the sources ----

  /** @param {HTMLElement} area */
  #acceptDrops(area) {
    let depth = 0;
    const light = (/** @type {boolean} */ on) => this.#zone.classList.toggle("over", on);
    const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
    area.addEventListener("dragenter", (event) => {
      if (!hasFiles(event)) return;
      depth++;
      light(true);
    });
    area.addEventListener("dragover", (event) => {
      if (hasFiles(event)) event.preventDefault();
    });
    area.addEventListener("dragleave", (event) => {
      if (hasFiles(event) && --depth <= 0) light(false);
    });
    area.addEventListener("drop", (event) => {
      if (!event.dataTransfer || !hasFiles(event)) return;
      event.preventDefault();
      depth = 0;
      light(false);
      const { files, folders } = droppedFiles(event.dataTransfer);
      this.clearProblems();
      if (folders > 0) this.problem("source", "Folders cannot be read here: drop the files in them.");
      void this.#take(files);
    });
  }

  /** @param {File[]} files */
  async #take(files) {
    const [first] = files;
    if (!first) return;
    if (files.length === 1 && (await isTrajectory(first))) return this.#onRecording(first);
    const kept = this.sources.filter((source) => source !== SAMPLE);
    this.#use([...kept, ...files.map(fileSource)]);
  }

  /** @param {Source[]} sources */
  #use(sources) {
    this.sources = sources.length > 0 ? sources : [SAMPLE];
    this.#show();
  }

  #show() {
    const { sources } = this;
    const items = sources.slice(0, MAX_LISTED).map((source) => {
      const item = el("li", {}, el("span", { class: "name", text: source.name }), el("small", { text: source.size }));
      if (source === SAMPLE) return item;
      const remove = el("button", {
        class: "quiet",
        "aria-label": `Leave out ${source.name}`,
        onclick: () => this.#use(sources.filter((other) => other !== source)),
      });
      remove.append(icon("close"));
      item.append(remove);
      return item;
    });
    if (sources.length > MAX_LISTED) items.push(el("li", { text: `and ${sources.length - MAX_LISTED} more` }));
    this.#list.replaceChildren(...items);
    void this.#showPeek(/** @type {Source} */ (sources[0]));
  }

  /** @param {Source} source */
  async #showPeek(source) {
    const text = await source.peek().catch((error) => `cannot be read: ${error.message}`);
    if (this.sources[0] === source) this.#peek.textContent = text.slice(0, PEEK_CHARS) || "(empty)";
  }
}

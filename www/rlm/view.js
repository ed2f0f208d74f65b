// The view of a run: the tree of runs, the turns of one of them, the spending and the answer. It draws in animation frames,
// a little at a time, and only what has changed.

import { byId, el } from "../dom.js";
import { clip, count } from "../format.js";
import { AnswerCard, answerText } from "./answer.js";
import { Meters } from "./meters.js";
import { StageCard } from "./stage.js";
import { State } from "./state.js";
import { STATUS, TreeView } from "./tree.js";
import { TurnView } from "./turn.js";

/** @import { Source } from "./player.js" */
/** @import { Run } from "./state.js" */

/** Time in each frame for events, and for drawing. */
const APPLY_MS = 5;
const DRAW_MS = 6;
/** Length of a task that fits above the run. */
export const MAX_TITLE_CHARS = 300;
/** The number of newest turns that are unfolded: none where they would make a page of many screens. */
const OPEN_TURNS = matchMedia("(width < 44rem)").matches ? 0 : 2;

/** The view of a tree of runs. It takes its events from a source. */
export class RunView {
  state = new State();
  /** @type {Source | undefined} */
  #source;
  #selected = "0";
  #drawn = -1;
  #frame = 0;
  #lastFrame = 0;
  /** @type {TurnView[]} */
  #turns = [];

  #onFrame;
  #section = byId("run");
  #badge = byId("run-badge");
  #head = byId("selected-run");
  #list = byId("turns");
  #end = byId("run-end");
  stage = new StageCard();
  #tree;
  #meters = new Meters(byId("meters"));
  #answer = new AnswerCard();

  /** @param {() => void} onFrame  called after every frame */
  constructor(onFrame) {
    this.#onFrame = onFrame;
    this.#tree = new TreeView(byId("tree"), byId("tree-more"), (id) => this.select(id));
  }

  /** Shows another source, or the same one from its beginning. @param {Source} source */
  show(source) {
    this.#source = source;
    this.#section.hidden = false;
    this.#selected = "0";
    this.reset();
  }

  /** Clears the view. */
  reset() {
    this.state = new State();
    this.#drawn = -1;
    this.#tree.clear();
    this.select(this.#selected);
  }

  /** Shows the turns of a run. @param {string} id */
  select(id) {
    this.#selected = id;
    this.#turns = [];
    this.#list.replaceChildren();
    this.#head.replaceChildren();
    this.#end.replaceChildren();
    this.#drawn = -1;
    this.#tree.select(id);
    this.wake();
  }

  /** Draws frames until the source has no more events and all is drawn. */
  wake() {
    if (this.#frame) return;
    this.#lastFrame = performance.now();
    this.#frame = requestAnimationFrame((now) => this.#step(now));
  }

  /** @param {number} now */
  #step(now) {
    this.#frame = 0;
    const source = this.#source;
    if (!source) return;
    source.tick(Math.max(0, now - this.#lastFrame));
    this.#lastFrame = now;
    const until = performance.now() + APPLY_MS;
    for (let event; performance.now() < until && (event = source.next());) this.state.apply(event);
    const isWhole = this.#draw(source.time);
    this.#onFrame();
    if (source.active || !isWhole) this.#frame = requestAnimationFrame((now) => this.#step(now));
  }

  /** @param {number} now  milliseconds since the run began @returns {boolean} true if all is drawn */
  #draw(now) {
    const { state } = this;
    const hasTree = this.#tree.update(state, now, performance.now() + DRAW_MS / 2);
    this.#meters.update(state, now);
    if (state.revision === this.#drawn) return hasTree;
    const { root } = state;
    this.#answer.update(root);
    this.stage.update(state);
    this.#badge.dataset.state = root?.status ?? "running";
    this.#badge.textContent = root ? STATUS[root.status] : "starting";
    const isWhole = this.#drawRun(state.runs.get(this.#selected));
    if (isWhole) this.#drawn = state.revision;
    return isWhole && hasTree;
  }

  /** @param {Run | undefined} run */
  #drawRun(run) {
    if (!run) return true;
    if (!this.#head.firstChild && run.status !== "waiting") this.#head.append(...about(run));
    const until = performance.now() + DRAW_MS / 2;
    const added = [];
    for (const turn of run.turns.slice(this.#turns.length)) {
      const view = new TurnView(turn, { onRun: (id) => this.select(id) });
      this.#turns.push(view);
      added.push(view.element);
      view.update(run);
      if (performance.now() > until) break;
    }
    this.#list.append(...added);
    this.#turns.forEach((view, index) => {
      view.update(run);
      view.open = index >= run.turns.length - OPEN_TURNS;
    });
    const isWhole = this.#turns.length === run.turns.length;
    if (isWhole && !this.#end.firstChild) this.#end.append(...ending(run));
    return isWhole;
  }
}

/** The task and contexts of a run. @param {Run} run */
function about(run) {
  /** @type {HTMLElement[]} */
  const parts = [el("h3", { text: run.id === "0" ? "The run" : `Run ${run.id}` })];
  // The first run's task is the title above.
  if (run.id !== "0" || run.task.length > MAX_TITLE_CHARS)
    parts.push(el("p", { class: "task", text: clip(run.task, 4_000) }));
  for (const { name, type, length, unit, characters, peek } of run.contexts.slice(0, 20)) {
    const size = [type, length !== undefined && count(length, String(unit ?? "").replace(/s$/, "") || "item")];
    if (characters !== undefined) size.push(count(characters, "character"));
    const line = el("summary", {}, el("code", { text: name }), ` ${size.filter(Boolean).join(", ")}`);
    parts.push(el("details", { class: "context-facts" }, line, el("pre", { text: peek || "(empty)", tabindex: "0" })));
  }
  return parts;
}

/** The answer or error of a child run; the first run's is in the answer card. @param {Run} run */
function ending(run) {
  if (run.id === "0" || run.status === "running" || run.status === "waiting") return [];
  const has = run.answer !== undefined && run.answer !== null;
  const text = has ? answerText(run.answer) : (run.error ?? "");
  return [
    el("span", { class: "label", text: has ? "answer to the run that asked" : `no answer: ${STATUS[run.status]}` }),
    el("pre", { text: clip(text, 20_000), tabindex: "0" }),
  ];
}

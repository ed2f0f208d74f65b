// The calls of one block: Python's questions and their answers.

import { el } from "../dom.js";
import { clip, count, time } from "../format.js";
import { labelled } from "../result.js";

/** @import { Call } from "./state.js" */

const FIRST = 8;
const MORE = 100;

/** The list of a block's calls. Long lists show their first calls, and more on demand. */
export class CallsView {
  #onRun;
  #calls = /** @type {Call[]} */ ([]);
  /** @type {{ view: CallView, call: Call }[]} */
  #shown = [];
  #most = FIRST;
  #title = el("p", { class: "label" });
  #list = el("ol", { class: "calls" });
  #more = el("button", { class: "quiet small", hidden: true, onclick: () => this.#showMore() });
  element = el("div", { class: "block-calls" }, this.#title, this.#list, this.#more);

  /** @param {(id: string) => void} onRun  shows a run */
  constructor(onRun) {
    this.#onRun = onRun;
  }

  /** @param {Call[]} calls */
  update(calls) {
    this.#calls = calls;
    for (const call of calls.slice(this.#shown.length, this.#most)) {
      const view = new CallView(call, this.#onRun);
      this.#list.append(view.element);
      this.#shown.push({ view, call });
    }
    for (const { view, call } of this.#shown) view.update(call);
    const waiting = calls.filter(({ status }) => status === "waiting").length;
    const failed = calls.filter(({ status }) => status === "failed").length;
    const parts = [count(calls.length, "call"), waiting && `${waiting} waiting`, failed && `${failed} failed`];
    this.#title.textContent = parts.filter(Boolean).join(" · ");
    const rest = calls.length - this.#shown.length;
    this.#more.hidden = rest === 0;
    this.#more.textContent = `Show ${Math.min(rest, MORE)} more of ${calls.length}`;
  }

  #showMore() {
    this.#most += MORE;
    this.update(this.#calls);
  }
}

class CallView {
  #revision = 0;
  #call;
  #excerpt = el("span", { class: "excerpt" });
  #state = el("span", { class: "call-state" });
  #gist = el("span", { class: "excerpt gist" });
  #body = el("div", { class: "call-body" });
  #details;
  element;

  /** @param {Call} call @param {(id: string) => void} onRun */
  constructor(call, onRun) {
    this.#call = call;
    this.#excerpt.textContent = call.prompt.slice(0, 200);
    const summary = el("summary", {}, el("code", { text: call.name }), this.#excerpt, this.#state, this.#gist);
    this.#details = el("details", { ontoggle: () => this.#fill() }, summary, this.#body);
    this.element = el("li", { class: "call" }, this.#details);
    const { child } = call;
    if (child === undefined) return;
    this.element.classList.add("recurses");
    this.element.append(el("button", { class: "link to-run", text: `Open run ${child}`, onclick: () => onRun(child) }));
  }

  /** @param {Call} call */
  update(call) {
    if (call.revision === this.#revision) return;
    this.#revision = call.revision;
    const { status, duration, answer, error, retries } = call;
    this.element.dataset.state = { waiting: "pending", answered: "ok", failed: "error" }[status];
    const took = duration === undefined ? "…" : time(duration);
    this.#state.textContent = status === "failed" ? `failed · ${took}` : took;
    this.#gist.textContent = (answer ?? error ?? retries.at(-1) ?? "waiting …").slice(0, 200) || "(nothing)";
    this.#fill();
  }

  /** Fills in a call's body when it is unfolded. */
  #fill() {
    if (!this.#details.open) return;
    const { prompt, promptChars, model, answer, error, retries } = this.#call;
    const asked = [`prompt, ${count(promptChars, "character")}`, model && `for the model ${clip(model, 200)}`];
    const parts = [labelled(asked.filter(Boolean).join(", "), prompt)];
    if (retries.length > 0) parts.push(labelled("repeated", retries.join("\n")));
    if (error !== undefined) parts.push(labelled("failed", error));
    else parts.push(labelled("answer", answer ?? "waiting …"));
    this.#body.replaceChildren(...parts);
  }
}

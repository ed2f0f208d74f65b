// The log of host calls as they happen: Python's question, the answer, and the time it took.

import { byId, el } from "../dom.js";
import { clip, preview, time } from "../format.js";

const MAX_ENTRIES = 150;
const MAX_CHARS = 3_000;

export class CallLog {
  #list = byId("calls");
  #empty = byId("no-calls");
  #total = byId("call-count");
  #count = 0;
  #pending = 0;

  constructor() {
    byId("clear-calls").addEventListener("click", () => this.#clear());
  }

  /** The number of calls that wait for an answer. */
  get pending() {
    return this.#pending;
  }

  /**
   * Calls `answer`, and shows the call and its answer.
   * @param {object} call
   * @param {string} call.name
   * @param {string} call.prompt
   * @param {AbortSignal} call.signal
   * @param {boolean} [call.nested]  true if a sub-sandbox made the call
   * @param {() => Promise<string>} answer
   */
  async record({ name, prompt, signal, nested = false }, answer) {
    const begin = performance.now();
    const entry = this.#open(name, prompt, nested);
    const onAbort = () => entry.close("aborted", "Python no longer waits for it.", performance.now() - begin);
    signal.addEventListener("abort", onAbort, { once: true });
    if (!nested) this.#pending++;
    try {
      const text = await answer();
      entry.close("ok", text, performance.now() - begin);
      return text;
    } catch (error) {
      entry.close("error", error instanceof Error ? error.message : preview(error), performance.now() - begin);
      throw error;
    } finally {
      if (!nested) this.#pending--;
      signal.removeEventListener("abort", onAbort);
    }
  }

  /** @param {string} name @param {string} prompt @param {boolean} nested */
  #open(name, prompt, nested) {
    const state = el("span", { class: "call-state", text: "…" });
    const excerpt = el("span", { class: "excerpt", text: prompt.slice(0, 160) });
    const gist = el("span", { class: "excerpt gist", text: "waiting …" });
    const answer = el("pre", { text: "waiting …", tabindex: "0" });
    const details = el(
      "details",
      {},
      el("summary", {}, el("code", { text: name }), excerpt, state, gist),
      el("span", { class: "label", text: "prompt" }),
      el("pre", { text: clip(prompt, MAX_CHARS), tabindex: "0" }),
      el("span", { class: "label", text: "answer" }),
      answer,
    );
    const item = el("li", { class: nested ? "call nested" : "call", "data-state": "pending" }, details);
    this.#list.prepend(item);
    if (this.#list.children.length > MAX_ENTRIES) this.#list.lastElementChild?.remove();
    this.#empty.hidden = true;
    this.#total.textContent = String(++this.#count);

    /** @param {"ok" | "error" | "aborted"} how @param {string} text @param {number} ms */
    const close = (how, text, ms) => {
      if (item.dataset.state !== "pending") return;
      item.dataset.state = how;
      state.textContent = how === "ok" ? time(ms) : `${how} · ${time(ms)}`;
      gist.textContent = text.slice(0, 160);
      answer.textContent = clip(text, MAX_CHARS);
    };
    return { close };
  }

  #clear() {
    this.#list.replaceChildren();
    this.#empty.hidden = false;
    this.#count = 0;
    this.#total.textContent = "";
  }
}

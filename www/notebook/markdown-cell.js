// A cell with text: shown as Markdown, and edited when it is clicked twice.

import { el, icon } from "../dom.js";
import { whenInSight } from "../in-sight.js";
import { actionsOf } from "./cell-actions.js";
import { createEditor } from "./editor.js";

/** @import { AnyCell, CellEvents } from "./cell-actions.js" */
/** @import { CellRecord } from "./ipynb.js" */

/** A cell with text. @implements {AnyCell} */
export class MarkdownCell {
  /** @type {"markdown"} */
  kind = "markdown";
  #source;
  #around;
  /** @type {ReturnType<typeof createEditor> | undefined} */
  #editor;
  #toggle = el("button", { class: "run", onclick: () => (this.#editor ? this.run() : this.#edit()) });
  #view = el("div", { class: "markdown", ondblclick: () => this.#edit() });
  #paper = el("div", { class: "paper text" });
  element = el("section", { class: "cell markdown-cell" });

  /** @param {CellRecord} record @param {CellEvents} around */
  constructor({ source }, around) {
    this.#source = source;
    this.#around = around;
    this.element.append(el("div", { class: "gutter" }, this.#toggle), this.#paper, actionsOf(this, around));
    if (source) void this.run();
    else this.#edit();
  }

  /** @param {number} position */
  set position(position) {
    this.element.setAttribute("aria-label", `Cell ${position}`);
  }

  /** @returns {CellRecord} */
  get record() {
    return { kind: "markdown", source: this.#source };
  }

  focus() {
    if (this.#editor) this.#editor.focus();
    else this.#toggle.focus();
  }

  stop() {}

  undone() {}

  remove() {
    this.#editor?.destroy();
    this.element.remove();
  }

  /** Shows the text. */
  async run() {
    this.#editor?.destroy();
    this.#editor = undefined;
    this.#show("Edit this text", "edit");
    this.#paper.replaceChildren(this.#view);
    this.#view.textContent = this.#source.slice(0, 1_000);
    whenInSight(this.#view, () => void this.#draw());
    return undefined;
  }

  async #draw() {
    const { markdown } = await import("./markdown.js");
    const text = this.#source.trim() ? markdown(this.#source) : [el("p", { class: "hint", text: "No text yet." })];
    this.#view.replaceChildren(...text);
  }

  #edit() {
    if (this.#editor) return;
    const parent = el("div", { class: "editor" });
    this.#show("Show this text", "run");
    this.#paper.replaceChildren(parent);
    this.#editor = createEditor({
      parent,
      code: this.#source,
      kind: "markdown",
      onEdit: (isChange) => {
        if (!isChange || !this.#editor) return;
        this.#source = this.#editor.code();
        this.#around.onChange();
      },
      onRun: () => {
        void this.run();
        this.focus();
      },
      onRunAndAdd: () => this.#around.onRunAndAdd(this),
      onMove: (by) => this.#around.onMove(this, by),
    });
    this.#editor.focus();
  }

  /** @param {string} label @param {string} name  the icon's */
  #show(label, name) {
    this.#toggle.setAttribute("aria-label", label);
    this.#toggle.title = label;
    this.#toggle.replaceChildren(icon(name));
  }
}

// The tree of runs: each run's parent, its status and its costs.

import { el } from "../dom.js";
import { count, time } from "../format.js";

/** @import { Run, State } from "./state.js" */

/** Runs listed; further ones are only counted. */
const MAX_ROWS = 1_000;

/** @type {Record<Run["status"], string>} */
export const STATUS = {
  waiting: "waiting",
  running: "running",
  answered: "answered",
  exhausted: "out of turns",
  limit: "budget used up",
  aborted: "stopped",
  failed: "failed",
};

/** The list of runs, one row each; one of them is selected. */
export class TreeView {
  #list;
  #more;
  #onSelect;
  /** @type {Map<string, Row>} */
  #rows = new Map();
  #selected = "0";

  /** @param {HTMLElement} list @param {HTMLElement} more @param {(id: string) => void} onSelect */
  constructor(list, more, onSelect) {
    this.#list = list;
    this.#more = more;
    this.#onSelect = onSelect;
    list.addEventListener("keydown", (event) => this.#key(event));
  }

  clear() {
    this.#rows.clear();
    this.#list.replaceChildren();
    this.#more.textContent = "";
  }

  /** @param {string} id */
  select(id) {
    this.#selected = id;
    for (const [name, row] of this.#rows) row.select(name === id);
  }

  /**
   * @param {State} state
   * @param {number} now  milliseconds since the first run began
   * @param {number} until  time after which new rows wait for the next frame
   * @returns {boolean} true if all rows are there
   */
  update(state, now, until) {
    let rest = 0;
    let isWhole = true;
    for (const run of state.runs.values()) {
      let row = this.#rows.get(run.id);
      if (!row) {
        if (this.#rows.size >= MAX_ROWS) {
          rest++;
          continue;
        }
        // Parents come first in the map, so a child's row finds its parent's.
        if (performance.now() > until) {
          isWhole = false;
          break;
        }
        row = new Row(run.id, () => this.#onSelect(run.id));
        row.select(run.id === this.#selected);
        (this.#rows.get(run.parent?.id ?? "")?.children() ?? this.#list).append(row.element);
        this.#rows.set(run.id, row);
      }
      row.update(run, now);
    }
    this.#more.textContent = rest > 0 ? `and ${count(rest, "more run")}` : "";
    return isWhole;
  }

  /** Moves through the rows by arrow keys. @param {KeyboardEvent} event */
  #key(event) {
    const rows = [...this.#list.querySelectorAll(".run-row")];
    const at = rows.indexOf(/** @type {Element} */ (event.target));
    if (at < 0) return;
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    const row = to === undefined ? undefined : rows[to];
    if (!(row instanceof HTMLElement)) return;
    event.preventDefault();
    row.focus();
    row.click();
  }
}

class Row {
  #revision = -1;
  #shownTime = "";
  #name = el("span", { class: "run-name" });
  #task = el("span", { class: "excerpt" });
  #status = el("span", { class: "run-status" });
  #facts = el("span", { class: "facts" });
  #time = el("span", { class: "facts run-time" });
  #row;
  /** @type {HTMLElement | undefined} */
  #group;
  element;

  /** @param {string} id @param {() => void} onSelect */
  constructor(id, onSelect) {
    this.#name.textContent = id === "0" ? "The run" : id;
    this.#row = el(
      "button",
      {
        class: "run-row",
        role: "treeitem",
        "aria-level": String(id.split(".").length),
        "data-run": id,
        onclick: onSelect,
      },
      el("span", { class: "dot", "aria-hidden": "true" }),
      this.#name,
      this.#status,
      this.#time,
      this.#task,
      this.#facts,
    );
    this.element = el("li", { role: "none" }, this.#row);
  }

  children() {
    if (!this.#group) {
      this.#group = el("ul", { role: "none" });
      this.element.append(this.#group);
    }
    return this.#group;
  }

  /** @param {boolean} is */
  select(is) {
    this.#row.setAttribute("aria-selected", String(is));
    this.#row.tabIndex = is ? 0 : -1;
  }

  /** @param {Run} run @param {number} now */
  update(run, now) {
    const took = run.duration ?? (run.status === "running" ? Math.max(0, now - run.startedAt) : 0);
    const shown =
      run.status === "waiting" ? "" : time(run.duration === undefined ? Math.floor(took / 100) * 100 : took);
    if (shown !== this.#shownTime) this.#time.textContent = this.#shownTime = shown;
    if (run.revision === this.#revision) return;
    this.#revision = run.revision;
    const { calls, inputTokens, outputTokens, cost } = run.usage;
    const facts = [
      run.maxIterations === undefined ? "" : `turn ${run.turns.length} of ${run.maxIterations}`,
      calls > 0 ? count(calls, "call") : "",
      count(inputTokens + outputTokens, "token"),
      cost > 0 ? money(cost) : "",
    ];
    this.#facts.textContent = facts.filter(Boolean).join(" · ");
    if (!this.#task.textContent) this.#task.textContent = run.task.slice(0, 200);
    this.#row.dataset.state = run.status;
    this.#status.textContent = STATUS[run.status];
  }
}

/** An amount, without a currency: the user's prices may be in any. @param {number} cost */
export function money(cost) {
  return cost === 0 ? "0" : cost < 0.01 ? cost.toPrecision(2) : cost.toFixed(2);
}

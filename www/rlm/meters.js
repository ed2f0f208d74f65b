// The meters above a run: what the tree of runs has spent of each limit.

import { el } from "../dom.js";
import { count, time } from "../format.js";
import { money } from "./tree.js";

/** @import { Limits, State } from "./state.js" */

/** @typedef {{ name: string, limit: keyof Limits, show: (n: number) => string }} Kind */

/** @type {Kind[]} */
const KINDS = [
  { name: "Calls", limit: "calls", show: (n) => n.toLocaleString("en") },
  { name: "Tokens", limit: "tokens", show: (n) => count(n, "token").replace(/ tokens?$/, "") },
  { name: "Cost", limit: "cost", show: money },
  { name: "Time", limit: "time", show: time },
];

/** The meters of calls, tokens, cost and time. */
export class Meters {
  #meters;

  /** @param {HTMLElement} list */
  constructor(list) {
    this.#meters = KINDS.map((kind) => {
      const value = el("dd");
      const bar = el("i");
      const track = el("div", { class: "track", "aria-hidden": "true" }, bar);
      const element = el("div", { class: "meter" }, el("dt", { text: kind.name }), value, track);
      list.append(element);
      return { ...kind, value, bar, track, element, shown: "" };
    });
  }

  /** @param {State} state @param {number} now  milliseconds since the first run began */
  update({ root, limits, isOver }, now) {
    const usage = root?.usage ?? { calls: 0, inputTokens: 0, outputTokens: 0, cost: 0 };
    const lasted = isOver ? (root?.duration ?? now) : Math.floor(now / 100) * 100;
    const spent = {
      calls: usage.calls,
      tokens: usage.inputTokens + usage.outputTokens,
      cost: usage.cost,
      time: lasted,
    };
    for (const meter of this.#meters) {
      const [is, most] = [spent[meter.limit], limits[meter.limit]];
      const text = most === undefined ? meter.show(is) : `${meter.show(is)} of ${meter.show(most)}`;
      if (text === meter.shown) continue;
      meter.value.textContent = meter.shown = text;
      meter.track.hidden = most === undefined;
      const share = most ? Math.min(1, is / most) : 0;
      meter.bar.style.setProperty("--share", String(share));
      meter.element.dataset.state = share >= 1 ? "full" : share > 0.8 ? "low" : "";
    }
  }
}

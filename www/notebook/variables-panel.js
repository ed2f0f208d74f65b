// The panel of Python's variables, with a preview of a chosen one.

import { byId, el } from "../dom.js";
import { count, preview } from "../format.js";

/** @import { Variable } from "../../pkg/sandglass.js" */
/** @import { Session } from "./session.js" */

const MAX_ROWS = 200;
/** Length up to which a value is copied out of Python for a preview. */
const MAX_LENGTH = 500_000;

/** @param {Session} session @returns {() => Promise<void>} brings the list up to date */
export function variablesPanel(session) {
  const rows = byId("variable-rows");
  const table = byId("variables");
  const empty = byId("no-variables");
  const total = byId("variable-count");
  const view = byId("variable-view");
  const shownName = byId("variable-name");
  const shownValue = byId("variable-value");
  /** @type {Variable | undefined} */
  let shown;
  let refreshes = 0;

  /** @param {Variable | undefined} variable */
  const show = async (variable) => {
    shown = variable;
    view.hidden = !variable;
    if (!variable) return;
    shownName.textContent = variable.name;
    if ((variable.length ?? 0) > MAX_LENGTH) {
      shownValue.textContent = `Too long to show here. In a cell: ${variable.name}[:500]`;
      return;
    }
    if (session.state === "running") shownValue.textContent = "waiting for the running cell …";
    const text = await session.variable(variable.name).then(
      (value) => (value === undefined ? "It is gone." : preview(value)),
      (error) => `It cannot be shown: ${error.message}`,
    );
    if (shown === variable) shownValue.textContent = text;
  };

  /** @param {Variable[]} found */
  const list = (found) => {
    rows.replaceChildren(...found.slice(0, MAX_ROWS).map((variable) => row(variable, () => void show(variable))));
    if (found.length > MAX_ROWS) {
      const more = el("td", { colspan: "3", text: `and ${count(found.length - MAX_ROWS, "more", "more")}` });
      rows.append(el("tr", {}, more));
    }
    table.hidden = found.length === 0;
    empty.hidden = found.length > 0;
    total.textContent = found.length > 0 ? String(found.length) : "";
    return show(found.find(({ name }) => name === shown?.name));
  };

  const refresh = async () => {
    const mine = ++refreshes;
    const found = await session.variables().catch(() => []);
    if (mine !== refreshes) return;
    await list(found.sort((a, b) => a.name.localeCompare(b.name)));
  };

  byId("variable-close").addEventListener("click", () => void show(undefined));
  session.addEventListener("state", () => {
    if (session.state === "ready") void refresh();
    else if (session.state !== "running") void list([]);
  });
  return refresh;
}

/** @param {Variable} variable @param {() => void} onShow */
function row({ name, type, length }, onShow) {
  const button = el("button", { class: "link", text: name, title: `Show ${name}`, onclick: onShow });
  return el(
    "tr",
    {},
    el("td", {}, button),
    el("td", { text: type }),
    el("td", { class: "number", text: length === null ? "" : length.toLocaleString("en") }),
  );
}

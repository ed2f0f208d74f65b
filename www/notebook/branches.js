// The toolbar's way back and aside: undo, fork, and the choice between the forks.

import { byId, el, icon } from "../dom.js";

/** @import { Session } from "./session.js" */

/**
 * @param {Session} session
 * @param {(runs: Set<number>) => void} onUndone  takes the runs that are taken back
 * @param {(text: string) => void} say  shows a sentence
 */
export function branches(session, onUndone, say) {
  const row = byId("branches");
  const undo = /** @type {HTMLButtonElement} */ (byId("undo"));
  const fork = /** @type {HTMLButtonElement} */ (byId("fork"));

  const show = () => {
    const isReady = session.state === "ready";
    undo.disabled = fork.disabled = !isReady;
    for (const button of row.querySelectorAll("button")) button.disabled = !isReady;
  };
  const list = () => {
    const { branches, branch } = session;
    row.hidden = branches.length < 2;
    row.replaceChildren(
      ...branches.map((name, index) => {
        const choose = el("button", {
          text: name,
          "aria-pressed": String(name === branch),
          onclick: () => session.choose(name),
        });
        if (index === 0) return el("li", {}, choose);
        const close = el("button", {
          class: "quiet",
          "aria-label": `Close ${name}`,
          onclick: () => session.close(name),
        });
        close.append(icon("close"));
        return el("li", {}, choose, close);
      }),
    );
    show();
  };

  undo.addEventListener("click", async () => {
    try {
      const { last, runs } = await session.undo();
      onUndone(runs);
      say(
        last > 0 ? `Undone. Variables and files are as they were after run [${last}].` : "Undone. Nothing has run yet.",
      );
      session.refresh();
    } catch (error) {
      say(`Nothing is undone: ${/** @type {Error} */ (error).message}.`);
    }
  });
  fork.addEventListener("click", async () => {
    fork.disabled = true;
    try {
      await session.fork();
      say(`${session.branch} has a copy of all variables and files. Cells run in it until you choose another.`);
    } catch (error) {
      say(`No fork: ${/** @type {Error} */ (error).message}.`);
    }
    show();
  });
  session.addEventListener("state", show);
  session.addEventListener("branches", list);
  list();
}

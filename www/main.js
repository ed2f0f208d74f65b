// The playground's entry: two views of one page. All it does with Python goes through the package's public entries.

import { byId } from "./dom.js";
import { modelForm } from "./model-form.js";
import { showPythonOf } from "./python-status.js";
import { Ask } from "./rlm/ask.js";

const model = modelForm();
const ask = new Ask(model.endpoint);
let isAskOpen = false;

/** @type {Promise<void> | undefined} */
let notebook;

/** Shows the view that the address names. */
function show() {
  // A link to cells is `#notebook=…`. Before the first paint, index.html does the same.
  const isNotebook = location.hash.startsWith("#notebook");
  const view = isNotebook ? "notebook" : "ask";
  document.documentElement.dataset.view = view;
  showPythonOf(view);
  for (const name of ["ask", "notebook"]) {
    byId(`to-${name}`).toggleAttribute("aria-current", name === view);
    if (name === view) byId(`to-${name}`).setAttribute("aria-current", "page");
  }
  // Both views use one model, so one form moves between them, and one field holds the key.
  document.querySelector(`[data-model-slot="${view}"]`)?.append(byId("model"));
  if (!isNotebook && !isAskOpen) ask.open();
  isAskOpen ||= !isNotebook;
  if (isNotebook) notebook ??= import("./notebook/view.js").then(({ openNotebook }) => openNotebook(model.answer));
}

addEventListener("hashchange", () => {
  const before = document.documentElement.dataset.view;
  show();
  // The place in one view means nothing in the other.
  if (document.documentElement.dataset.view !== before) scrollTo(0, 0);
});
show();

// Outputs of an earlier visit, or of another's notebook. They are shown like those of code that runs here: as untrusted.

import { showDisplays } from "../displays.js";
import { el } from "../dom.js";
import { Output } from "../output.js";
import { labelled } from "../result.js";
import { richest } from "./ipynb.js";

/** @import { Output as SavedOutput } from "./ipynb.js" */

/** @param {SavedOutput[]} outputs @returns {HTMLElement[]} */
export function showSaved(outputs) {
  /** @type {HTMLElement[]} */
  const parts = [];
  const printed = new Output();
  for (const output of outputs) {
    switch (output.output_type) {
      case "stream":
        printed.push(output.name, output.text);
        break;
      case "error": {
        const failure = el("div", { class: "failure" }, el("p", { text: `${output.ename}: ${output.evalue}` }));
        const trace = el("pre", { text: output.traceback.join("\n"), tabindex: "0" });
        failure.append(el("details", {}, el("summary", { text: "Traceback" }), trace));
        parts.push(failure);
        break;
      }
      default: {
        const shown = richest(output.data);
        if (!shown) break;
        const isFinal = output.output_type === "display_data" && output.metadata.sandglass === "final";
        if (isFinal) parts.push(labelled("final answer", shown.data, "final"));
        else if (output.output_type === "execute_result" && shown.mime === "text/plain")
          parts.push(labelled("value", shown.data, "value"));
        else parts.push(...showDisplays([shown], { open: true }));
      }
    }
  }
  printed.paint();
  const note = "Saved output. Its variables come back when the cell is run.";
  return [printed.element, ...parts, el("p", { class: "hint saved-note", text: note })];
}

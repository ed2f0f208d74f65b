// Rich outputs of code. Nobody has checked them: pictures are shown only as PNG or JPEG, HTML only as text or in a frame
// without any rights.

import { displayFrame } from "../dist/display.js";
import { el } from "./dom.js";
import { clip } from "./format.js";

const MAX_DISPLAYS = 20;
const MAX_CHARS = 8_000;
const PICTURES = new Set(["image/png", "image/jpeg"]);

/** @param {{ mime: string, data: string }[]} displays @returns {HTMLElement[]} */
export function showDisplays(displays) {
  const shown = displays.slice(0, MAX_DISPLAYS).map(show);
  if (displays.length > MAX_DISPLAYS) {
    shown.push(el("p", { class: "hint", text: `and ${displays.length - MAX_DISPLAYS} more` }));
  }
  return shown;
}

/** @param {{ mime: string, data: string }} display */
function show({ mime, data }) {
  const label = el("span", { class: "label", text: mime });
  if (PICTURES.has(mime) && /^[A-Za-z0-9+/\s]+={0,2}\s*$/.test(data)) {
    const src = `data:${mime};base64,${data.replace(/\s/g, "")}`;
    return el("figure", { class: "display" }, label, el("img", { src, alt: "Picture that the code made" }));
  }
  const text = el("pre", { text: clip(data, MAX_CHARS), tabindex: "0" });
  const figure = el("figure", { class: "display" }, label, text);
  if (mime === "text/html") label.append(" ", frameButton(text, data));
  return figure;
}

/** A button that shows HTML in a frame in place of its text. @param {HTMLElement} text @param {string} html */
function frameButton(text, html) {
  /** @type {HTMLIFrameElement | undefined} */
  let frame;
  const button = el("button", {
    class: "quiet small",
    text: "Show as a page",
    onclick: () => {
      if (frame) {
        frame.replaceWith(text);
        frame = undefined;
      } else {
        frame = displayFrame(html);
        frame.title = "HTML that the code made";
        text.replaceWith(frame);
      }
      button.textContent = frame ? "Show as text" : "Show as a page";
    },
  });
  return button;
}

// Rich outputs of code. Nobody has checked them: pictures are shown only as images, HTML only as text or in a frame without any
// rights.

import { displayFrame } from "../dist/display.js";
import { el } from "./dom.js";
import { clip } from "./format.js";
import { whenInSight } from "./in-sight.js";

const MAX_DISPLAYS = 20;
const MAX_CHARS = 8_000;
/** Length of HTML that is shown as a page at once. Longer HTML may hold the page up, so it waits until somebody asks. */
const MAX_OPEN = 200_000;
const PICTURES = new Set(["image/png", "image/jpeg"]);
/** Looks of HTML that brings none. */
const STYLE = `<style>body{margin:8px;font:13px/1.5 system-ui,sans-serif}table{border-collapse:collapse}th,td{padding:3px 10px;border-bottom:1px solid #e4dac8;text-align:left}</style>`;

/**
 * @param {{ mime: string, data: string }[]} displays
 * @param {{ open?: boolean }} [options]  `open`: HTML is shown as a page, once it is in sight
 * @returns {HTMLElement[]}
 */
export function showDisplays(displays, { open = false } = {}) {
  const shown = displays.slice(0, MAX_DISPLAYS).map((display) => show(display, open));
  if (displays.length > MAX_DISPLAYS) {
    shown.push(el("p", { class: "hint", text: `and ${displays.length - MAX_DISPLAYS} more` }));
  }
  return shown;
}

/** @param {{ mime: string, data: string }} display @param {boolean} open */
function show({ mime, data }, open) {
  const label = el("span", { class: "label", text: mime });
  const src = addressOf(mime, data);
  if (src) return el("figure", { class: "display" }, label, el("img", { src, alt: "Picture that the code made" }));
  const text = el("pre", { text: clip(data, MAX_CHARS), tabindex: "0" });
  const figure = el("figure", { class: "display" }, label, text);
  if (mime === "text/html") {
    const button = frameButton(text, data);
    label.append(" ", button);
    if (open && data.length <= MAX_OPEN) {
      // The frame's place is kept, so that nothing moves under the pointer when it comes.
      text.style.height = `${heightOf(data)}px`;
      whenInSight(figure, () => button.click());
    }
  }
  return figure;
}

/** A picture's data as an address. An image neither runs an SVG's scripts nor loads what it names. @param {string} mime @param {string} data */
function addressOf(mime, data) {
  if (mime === "image/svg+xml") return `data:image/svg+xml,${encodeURIComponent(data.toWellFormed())}`;
  if (!PICTURES.has(mime) || !/^[A-Za-z0-9+/\s]+={0,2}\s*$/.test(data)) return undefined;
  return `data:${mime};base64,${data.replace(/\s/g, "")}`;
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
        frame = displayFrame(STYLE + html);
        frame.title = "HTML that the code made";
        frame.style.height = `${heightOf(html)}px`;
        text.replaceWith(frame);
      }
      button.textContent = frame ? "Show as text" : "Show as a page";
    },
  });
  return button;
}

/** A guess at the height of HTML. The frame has no rights, so the page cannot measure what is in it. @param {string} html */
function heightOf(html) {
  const lines = html.match(/<(?:tr|p|li|h[1-6]|br|div|pre)\b/gi)?.length ?? 0;
  const isPicture = /<(?:svg|img)\b/i.test(html);
  return Math.min(330, Math.max(isPicture ? 300 : 60, 24 + 29 * lines));
}

// A picture of the spread: for each contestant, the time that every run took beyond the model's own.
import { quantile } from "../quantile.mjs";
import { answeredByAll, overhead } from "./report.mjs";

/** @import { Row } from "./measure.mjs" */

const [WIDTH, LEFT, RIGHT, ROW, TOP] = [900, 190, 80, 46, 62];
/** The least seconds on the axis, which is logarithmic. Runs that took less stand at its beginning. */
const LEAST = 0.03;
const [OURS, OTHERS] = ["#c2570c", "#3d5a80"];

/** An SVG of all runs without faults. @param {Row[]} rows @param {{ name: string, title: string }[]} contestants */
export function picture(rows, contestants) {
  const own = answeredByAll(rows);
  const most = Math.max(1, ...own.map(overhead));
  const x = (/** @type {number} */ seconds) =>
    LEFT + ((WIDTH - LEFT - RIGHT) * Math.log(Math.max(LEAST, seconds) / LEAST)) / Math.log(most / LEAST);
  const bottom = TOP + contestants.length * ROW;
  const marks = [LEAST, 0.1, 0.3, 1, 3, 10, 30].filter((mark) => mark <= most);
  const axis = marks.map(
    (mark) =>
      `<line x1="${x(mark).toFixed(1)}" x2="${x(mark).toFixed(1)}" y1="${TOP - 4}" y2="${bottom}" stroke="#e3e3e3"/>` +
      `<text x="${x(mark).toFixed(1)}" y="${bottom + 20}" text-anchor="middle" fill="#555">${mark === LEAST ? "≤ " : ""}${mark} s</text>`,
  );
  const lanes = contestants.map(({ name, title }, index) => {
    const y = TOP + index * ROW + ROW / 2;
    const colour = name.startsWith("sandglass") ? OURS : OTHERS;
    const seconds = own.filter(({ contestant }) => contestant === name).map(overhead);
    const dots = seconds.map((value, number) => {
      const lift = ((number * 7) % 25) - 12; // dots that would cover each other lie apart
      return `<circle cx="${x(value).toFixed(1)}" cy="${y + lift}" r="3.2" fill="${colour}" fill-opacity="0.4"/>`;
    });
    const middle = seconds.length ? quantile(seconds, 0.5) : 0;
    const at = x(middle).toFixed(1);
    const median = seconds.length
      ? `<line x1="${at}" x2="${at}" y1="${y - 17}" y2="${y + 17}" stroke="${colour}" stroke-width="2.5"/>` +
        `<text x="${WIDTH - 12}" y="${y + 5}" text-anchor="end" fill="${colour}" font-weight="bold">${middle.toFixed(2)} s</text>`
      : "";
    return `<text x="${LEFT - 14}" y="${y + 5}" text-anchor="end">${title}</text>${dots.join("")}${median}`;
  });
  const label = "Seconds that each run adds to the model's own time";
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${bottom + 36}" width="${WIDTH}" height="${bottom + 36}" role="img" aria-label="${label}" font-family="system-ui, sans-serif" font-size="14">`,
    `<rect width="100%" height="100%" fill="white"/>`,
    `<text x="14" y="26" font-size="16" font-weight="bold">${label}</text>`,
    `<text x="14" y="46" fill="#555">A dot is a run, a bar the median. Further left is better; the axis is logarithmic.</text>`,
    ...axis,
    ...lanes,
    "</svg>\n",
  ].join("\n");
}

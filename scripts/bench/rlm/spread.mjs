// A picture of the spread: for each contestant, the time that every run took beyond the model's own.
import { overhead } from "./report.mjs";

/** @import { Row } from "./measure.mjs" */

const [WIDTH, LEFT, ROW, TOP] = [860, 150, 44, 46];

/** An SVG of all runs without faults. @param {Row[]} rows @param {string[]} names */
export function picture(rows, names) {
  const own = rows.filter(({ scenario, error }) => scenario === "standard" && error === undefined);
  const at = (/** @type {Row} */ row) => Math.max(0.01, overhead(row));
  const most = Math.max(1, ...own.map(at));
  const x = (/** @type {number} */ seconds) =>
    LEFT + ((WIDTH - LEFT - 30) * Math.log(Math.max(0.01, seconds) / 0.01)) / Math.log(most / 0.01);
  const height = TOP + names.length * ROW + 40;
  const marks = [0.01, 0.1, 1, 10, 100].filter((mark) => mark <= most);
  const lines = marks.map(
    (mark) =>
      `<line x1="${x(mark).toFixed(1)}" x2="${x(mark).toFixed(1)}" y1="${TOP - 8}" y2="${height - 30}" stroke="#ddd"/>` +
      `<text x="${x(mark).toFixed(1)}" y="${height - 12}" text-anchor="middle">${mark} s</text>`,
  );
  const contestants = names.map((name, index) => {
    const y = TOP + index * ROW + ROW / 2;
    const dots = own
      .filter(({ contestant }) => contestant === name)
      .map((row, number) => {
        const lift = ((number * 7) % 23) - 11; // dots that would cover each other lie apart
        return `<circle cx="${x(at(row)).toFixed(1)}" cy="${y + lift}" r="3" fill="#36c" fill-opacity="0.45"/>`;
      });
    return `<text x="${LEFT - 12}" y="${y + 4}" text-anchor="end">${name}</text>${dots.join("")}`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${height}" font-family="sans-serif" font-size="13">`,
    `<rect width="100%" height="100%" fill="white"/>`,
    `<text x="${LEFT}" y="22" font-weight="bold">Seconds that a run adds to the model's own time (each dot is a run; less is better)</text>`,
    ...lines,
    ...contestants,
    "</svg>\n",
  ].join("\n");
}

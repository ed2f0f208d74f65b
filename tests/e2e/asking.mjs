// Helpers for the playground's first view: actions of a visitor, readings of the page, and rules that every page must keep.
import { writeFile } from "node:fs/promises";
import { join } from "node:path";

/** The key for the scripted endpoint. */
export const KEY = "the-secret-key";

/**
 * @param {Awaited<ReturnType<typeof import("./visit.mjs").visit>>} visitor
 * @param {string} modelServer  the scripted endpoint's address
 */
export function asking({ includes, name, page, results }, modelServer) {
  return { answered, ask, choose, endpoint, exported, open, runs, shownRun, statuses, value, watch };

  /** Plays the recording that comes with the page. */
  async function watch() {
    await page.click("#recordings > summary");
    await page.click("#ask-watch");
  }

  /** @param {string} selector */
  function value(selector) {
    return page.$eval(selector, (it) => /** @type {HTMLInputElement} */ (it).value);
  }

  /**
   * The runs in the tree. The page draws the tree over several frames. With `wanted`, waits until these runs are there, or that
   * many; if they never come, returns the runs that are there.
   * @param {string[] | number} [wanted]
   */
  async function runs(wanted) {
    const are = (/** @type {string[] | number | undefined} */ wanted) => {
      const shown = [...document.querySelectorAll(".run-row")].map((row) => row.getAttribute("data-run"));
      return wanted === undefined || shown.length === wanted || String(shown) === String(wanted);
    };
    await page.waitForFunction(are, {}, wanted).catch(() => {});
    return page.$$eval(".run-row", (rows) => rows.map((row) => row.getAttribute("data-run")));
  }

  /** The status of each run in the tree. */
  function statuses() {
    return page.$$eval(".run-status", (all) => all.map((it) => it.textContent));
  }

  /** Begins a run. @param {string} question */
  async function ask(question) {
    await page.locator("#question").fill(question);
    // The page itself looks: the run may be over before a question from here reaches it.
    const begun = page.evaluate(
      () =>
        new Promise((resolve) => {
          const observer = new MutationObserver(() => {
            if (!document.querySelector("#answer[hidden]") || !document.querySelector("#ask-run:disabled")) return;
            observer.disconnect();
            resolve(undefined);
          });
          observer.observe(document.body, { subtree: true, attributes: true });
        }),
    );
    await page.click("#ask-run");
    await begun;
  }

  /** Waits for the end of the run. */
  async function answered() {
    await page.waitForSelector("#answer:not([hidden])");
    await page.waitForSelector("#ask-run:enabled");
  }

  /** Chooses files in place of the earlier ones. @param {[string, string][]} files @param {string} [input] */
  async function choose(files, input = "#ask-file") {
    if (input === "#ask-file") await page.click("#ask-sample");
    await page.$eval(
      input,
      (it, files) => {
        const data = new DataTransfer();
        for (const [name, content] of files) data.items.add(new File([content], name));
        /** @type {HTMLInputElement} */ (it).files = data.files;
        it.dispatchEvent(new Event("change"));
      },
      files,
    );
    if (input === "#ask-file") await includes("#sources", files[0][0]);
  }

  /** Chooses a model of the scripted server. @param {string} model */
  async function endpoint(model) {
    await page.select("#preset", "own");
    await page.locator('input[name="base-url"]').fill(`${modelServer}/v1`);
    await page.locator('input[name="model-name"]').fill(model);
    await page.locator('input[name="key"]').fill(KEY);
  }

  /** Opens a recording. @param {string} content */
  async function open(content) {
    const file = join(results, `playground-ask-${name}.jsonl`);
    await writeFile(file, content);
    await page.$eval("#run-kind", (it) => (it.textContent = ""));
    const input = /** @type {import("puppeteer-core").ElementHandle<HTMLInputElement>} */ (
      await page.$("#recording-file")
    );
    await input.uploadFile(file);
    await includes("#run-kind", "Recording: ");
    await page.waitForSelector("#answer:not([hidden])");
  }

  /** The text that the button Export saves. */
  async function exported() {
    return page.evaluate(async () => {
      const [make, click] = [URL.createObjectURL, HTMLAnchorElement.prototype.click];
      /** @type {{ blob?: Blob, name: string }} */
      const saved = { name: "" };
      URL.createObjectURL = (blob) => make.call(URL, (saved.blob = /** @type {Blob} */ (blob)));
      HTMLAnchorElement.prototype.click = function () {
        saved.name = this.download;
      };
      document.getElementById("run-export")?.click();
      Object.assign(URL, { createObjectURL: make });
      HTMLAnchorElement.prototype.click = click;
      return { name: saved.name, text: (await saved.blob?.text()) ?? "" };
    });
  }

  /** All text that the page shows of a run, with every turn unfolded. @returns {Promise<Record<string, string>>} */
  async function shownRun() {
    await page.$$eval("#turns .turn > details:not([open]) > summary", (all) =>
      all.forEach((it) => /** @type {HTMLElement} */ (it).click()),
    );
    await page.waitForFunction(() =>
      [...document.querySelectorAll("#turns .turn-content")].every((it) => it.children.length > 0),
    );
    return page.evaluate(() => {
      const of = (/** @type {string} */ id) => document.getElementById(id)?.textContent ?? "";
      return Object.fromEntries(
        ["run-title", "run-badge", "tree", "selected-run", "turns", "answer", "meters"].map((id) => [id, of(id)]),
      );
    });
  }
}

/** Visible texts whose contrast with their background is below 4.5 to 1. Source: WCAG 2.2, 1.4.3. Runs in the page. */
export function faintTexts() {
  const canvas = /** @type {CanvasRenderingContext2D} */ (
    document.createElement("canvas").getContext("2d", { willReadFrequently: true })
  );
  const rgba = (/** @type {string} */ colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const luminance = (/** @type {Uint8ClampedArray} */ [r, g, b]) => {
    const linear = (/** @type {number} */ n) =>
      n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4;
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const behind = (/** @type {Element | null} */ it) => {
    for (; it; it = it.parentElement) {
      const colour = rgba(getComputedStyle(it).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgba("white");
  };
  const found = new Set();
  for (const it of document.querySelectorAll("#ask *, header.top *")) {
    if (!(it instanceof HTMLElement) || !it.checkVisibility() || it.matches(":disabled, option, .visually-hidden"))
      continue;
    if (![...it.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent?.trim())) continue;
    const [text, back] = [luminance(rgba(getComputedStyle(it).color)), luminance(behind(it))];
    const contrast = (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
    if (contrast < 4.5)
      found.add(`${contrast.toFixed(1)} ${it.tagName} .${it.className}: ${it.textContent?.slice(0, 30)}`);
  }
  return [...found];
}

// Helpers for the playground's notebook: actions of a visitor, and readings of the page.

/** @param {Awaited<ReturnType<typeof import("./visit.mjs").visit>>} visitor */
export function noting({ page }) {
  return { cell, ended, keys, logged, paste, restart, run, state, states };

  /** @param {number} n from 1 @param {string} [inside] */
  function cell(n, inside = "") {
    return `.cell:nth-child(${n}) ${inside}`.trim();
  }

  /** @param {string} wanted */
  function state(wanted) {
    return page.waitForSelector(`#state[data-state="${wanted}"]`);
  }

  /** All states of the header's badge so far. @returns {Promise<string[]>} */
  function states() {
    return page.evaluate(() => /** @type {any} */ (window).states);
  }

  /** Restarts by the button; resolves when Python is there again. */
  async function restart() {
    const before = (await states()).length;
    await page.click("#restart");
    await page.waitForFunction(
      (before) => {
        const later = /** @type {string[]} */ (/** @type {any} */ (window).states).slice(before);
        return later.includes("restarting") && later.at(-1) === "ready";
      },
      {},
      before,
    );
  }

  /** @param {string} modifier @param {string} key */
  async function keys(modifier, key) {
    await page.keyboard.down(/** @type {any} */ (modifier));
    await page.keyboard.press(/** @type {any} */ (key));
    await page.keyboard.up(/** @type {any} */ (modifier));
  }

  /** Replaces a cell's code. @param {number} n @param {string} code */
  async function paste(n, code) {
    await page.click(cell(n, ".editor >>> .cm-content"));
    await keys("Control", "a");
    await page.$eval(
      cell(n, ".editor"),
      (editor, code) => {
        const clipboardData = new DataTransfer();
        clipboardData.setData("text/plain", code);
        // Firefox has no way to make a ClipboardEvent with data.
        const event = Object.assign(new Event("paste", { bubbles: true, cancelable: true }), { clipboardData });
        editor.shadowRoot?.querySelector(".cm-content")?.dispatchEvent(event);
      },
      code,
    );
  }

  /** Runs a cell, with new code or as it is. @param {number} n @param {string} [code] */
  async function run(n, code) {
    if (code !== undefined) await paste(n, code);
    await page.click(cell(n, ".run"));
    return ended(n);
  }

  /** The texts of a cell after its run. @param {number} n */
  async function ended(n) {
    await page.waitForSelector(`${cell(n)}[data-state="idle"] .badge`);
    return page.$eval(cell(n), (it) => {
      const of = (/** @type {string} */ selector) => it.querySelector(selector)?.textContent ?? "";
      return {
        badge: of(".badge"),
        facts: of(".facts"),
        words: of(".words"),
        output: of(".output"),
        stderr: of(".output .stderr"),
        value: of(".value pre"),
        final: of(".final pre"),
        error: of(".failure p"),
        lost: [...it.querySelectorAll(".lost code")].map((name) => name.textContent),
      };
    });
  }

  /** The log of host calls, newest first. */
  function logged() {
    return page.$$eval(".call", (calls) =>
      calls.map((call) => ({
        state: /** @type {HTMLElement} */ (call).dataset.state,
        nested: call.classList.contains("nested"),
        shown: call.querySelector(".call-state")?.textContent ?? "",
        prompt: call.querySelectorAll("pre")[0].textContent ?? "",
        answer: call.querySelectorAll("pre")[1].textContent ?? "",
      })),
    );
  }
}

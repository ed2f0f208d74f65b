// Steps of a visit to the playground's notebook: cells that last, are saved, opened and linked; ways back and aside; packages,
// displays and models. They go on where the steps of playground.mjs end.
import { execFileSync } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { deflateRawSync } from "node:zlib";
import { NOBODY, root } from "./harness.mjs";
import { realWheels, serveFiles } from "./wheels.mjs";

const ATTACK = '<img src=x onerror="hacked=1"><script>hacked=1</script>';
/** A notebook by somebody else. */
const FOREIGN = {
  nbformat: 4,
  nbformat_minor: 5,
  metadata: {},
  cells: [
    {
      cell_type: "markdown",
      source: [`# Hello\n`, `${ATTACK}\n`, `[bad](javascript:hacked=1) [good](https://example.com)\n`, `![p](x)\n`],
    },
    {
      cell_type: "code",
      execution_count: 7,
      source: "linked = 1",
      outputs: [
        { output_type: "stream", name: "stdout", text: ["printed\n", "before\n"] },
        { output_type: "display_data", data: { "text/html": `<b>bold</b>${ATTACK}`, "text/plain": "no" } },
        {
          output_type: "display_data",
          data: { "image/svg+xml": `<svg xmlns="http://www.w3.org/2000/svg" onload="hacked=1"/>` },
        },
        { output_type: "execute_result", execution_count: 7, data: { "text/plain": ["'a value'"] } },
        { output_type: "error", ename: "ValueError", evalue: ATTACK, traceback: ["\u001b[31mred\u001b[0m"] },
        { output_type: "nonsense" },
        { output_type: "stream", name: "stdout", text: "x".repeat(100_001) },
      ],
    },
    { cell_type: "raw", source: "as it is" },
  ],
};

/**
 * @param {Awaited<ReturnType<typeof import("./visit.mjs").visit>>} visitor
 * @param {ReturnType<typeof import("./noting.mjs").noting>} helpers
 * @param {string} endpoint  an OpenAI-compatible endpoint's base URL
 * @returns {Record<string, import("./visit.mjs").Step>}
 */
export function notebookSteps(visitor, { cell, ended, keys, paste, restart, run, state }, endpoint) {
  const { barriers, browser, files, includes, name, page, site, text } = visitor;
  const cells = () => page.$$eval(".cell", (all) => all.length);
  /** @param {string} id  an entry of the file menu */
  const file = async (id) => {
    await page.click("#file-summary");
    await page.click(`#file-${id}`);
  };
  /** @param {string} content @param {string} [called] */
  const open = async (content, called = "other.ipynb") => {
    const path = join(files, called);
    await writeFile(path, content);
    const input = /** @type {import("puppeteer-core").ElementHandle<HTMLInputElement>} */ (
      await page.$("#notebook-file")
    );
    await input.uploadFile(path);
  };
  /** The code of all cells, by the notebook that the page saves. */
  const sources = async () => {
    const notebook = JSON.parse(await saved());
    return notebook.cells.map((/** @type {any} */ { source }) => source);
  };
  /** The file that the menu saves. */
  const saved = async () => {
    await page.evaluate(() => {
      const [make, click] = [URL.createObjectURL, HTMLAnchorElement.prototype.click];
      Object.assign(window, { savedFile: undefined });
      URL.createObjectURL = (blob) => make.call(URL, /** @type {any} */ (window.savedFile = blob));
      HTMLAnchorElement.prototype.click = () =>
        void (Object.assign(URL, { createObjectURL: make }), (HTMLAnchorElement.prototype.click = click));
    });
    await file("save");
    return page.evaluate(() => /** @type {any} */ (window).savedFile.text());
  };

  return {
    "keeps cells, outputs and variables over a reload, and runs no cell": async (check) => {
      check("there are four", (await cells()) === 4);
      await run(4, 'kept = "over a reload"; print("printed"); kept');
      await includes("#saved", "Saved in this browser, with the variables");
      await page.reload();
      await state("ready");
      check("they are there again", (await cells()) === 4 && (await sources())[3].startsWith('kept = "over'));
      const shown = await text(cell(4, ".result"));
      check(`with their outputs: ${shown}`, /printed\n.*'over a reload'.*Saved output/s.test(shown));
      await includes("#notice", "are back");
      await page.waitForSelector('#variable-rows button[title="Show kept"]');
      await run(3, "kept");
      check("the variable is as it was", (await text(cell(3, ".result"))).includes("'over a reload'"));
      await restart();
      await page.waitForFunction(() => !document.querySelector('#variable-rows button[title="Show kept"]'));
      await run(3, "kept = 1");
      await page.click("#shut-down");
      await state("destroyed");
      await page.waitForFunction(async () => {
        const { listPersisted } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
        return (await listPersisted()).length === 0;
      });
      await page.reload();
      await state("ready");
      const { value: names } = await run(3, "'kept' in globals()");
      check(`what was shut down is gone: ${names}`, names === "False");
      await page.evaluate(() => {
        for (let size = 4_000_000; size >= 100; size = Math.floor(size / 2)) {
          try {
            for (let n = 0; n < 5; n++) localStorage.setItem(`filler ${size} ${n}`, "x".repeat(size));
          } catch {
            // full up to this size
          }
        }
      });
      await paste(4, `note = "${"y".repeat(5_000)}"`);
      await includes("#saved", "no room");
      await page.evaluate(() => {
        for (const key of Object.keys(localStorage)) if (key.startsWith("filler")) localStorage.removeItem(key);
      });
      await paste(4, "kept = 2");
      await includes("#saved", "Saved in this browser");
    },

    "another tab saves once this one is closed, and replaces nothing that it has not seen": async (check) => {
      // A store of its own, so that the tabs of this step are all there are.
      const context = await browser.createBrowserContext();
      const KEY = "sandglass.notebook";
      const open = async () => {
        const tab = await context.newPage();
        await tab.goto(`${site.url}/www/#notebook`);
        await tab.waitForSelector(".cell");
        // A tab in the background has no frames, so a timer looks.
        const often = { polling: 100, timeout: 180_000 };
        const says = async (/** @type {string} */ words) => {
          const has = (/** @type {string} */ words) => document.querySelector("#saved")?.textContent?.includes(words);
          await tab.waitForFunction(has, often, words).catch(async () => {
            const said = await tab.$eval("#saved", (it) => it.textContent);
            throw new Error(`a tab should say “${words}”, and says “${said}”`);
          });
        };
        /** Waits until so many cells are kept. @param {number} count */
        const holds = (count) =>
          tab.waitForFunction(
            (key, count) => JSON.parse(localStorage.getItem(key) ?? "").cells.length === count,
            often,
            KEY,
            count,
          );
        /** The number of cells that are kept; undefined if they cannot be read. */
        const kept = () =>
          tab.evaluate((key) => {
            try {
              return JSON.parse(localStorage.getItem(key) ?? "").cells.length;
            } catch {
              return undefined;
            }
          }, KEY);
        const add = () => tab.evaluate(() => document.getElementById("add-cell")?.click());
        return { add, holds, kept, says, tab };
      };
      const first = await open();
      await first.add();
      await first.says("Saved in this browser");
      check("the first tab saves", (await first.kept()) === 4);

      const second = await open();
      await second.add();
      await second.says("open in another tab");
      check("the second does not", (await second.kept()) === 4);
      await first.tab.close();
      await second.says("Saved in this browser");
      check("until the first is closed", (await second.kept()) === 5);

      await second.tab.evaluate((key) => localStorage.setItem(key, `${localStorage.getItem(key)}!`), KEY);
      const third = await open();
      await third.says("cannot be read");
      await second.tab.close();
      await third.add();
      await third.says("Saved in this browser");
      check("what cannot be read is replaced by a change", (await third.kept()) === 4);
      const unread = await third.tab.evaluate((key) => localStorage.getItem(`${key}.unread`), KEY);
      check(`and there is a copy of it: ${unread?.slice(-20)}`, unread?.endsWith("}!"));

      const fourth = await open();
      await third.add();
      await third.holds(5);
      await third.tab.close();
      await fourth.says("another tab has saved other cells");
      await fourth.add();
      await fourth.tab.evaluate(() => dispatchEvent(new Event("pagehide"))); // saves at once
      check("cells that a tab has not seen stay", (await fourth.kept()) === 5);
      await context.close();
    },

    "saves a notebook that Jupyter reads": async (check) => {
      await run(4, 'import sys\nprint("out")\nprint("err", file=sys.stderr)\n1 / 0');
      const notebook = JSON.parse(await saved());
      check(`it has the format: ${notebook.nbformat}`, notebook.nbformat === 4 && notebook.nbformat_minor === 5);
      const kinds = notebook.cells[3].outputs.map((/** @type {any} */ { output_type, name }) => name ?? output_type);
      check(`its outputs: ${kinds}`, String(kinds) === "stdout,stderr,error");
      // Jupyter's own rules, where the tests have a Jupyter.
      const python = join(root, ".setup/jupyter/7/bin/python");
      const rules = "import nbformat, sys; nbformat.validate(nbformat.reads(sys.stdin.read(), as_version=4))";
      execFileSync(python, ["-c", rules], { input: JSON.stringify(notebook) });
    },

    "opens another's notebook when the visitor agrees, and trusts nothing in it": async (check) => {
      for (const [content, why] of /** @type {[string, RegExp][]} */ ([
        ["<html>", /cannot be opened: it is not a notebook: it is not JSON/],
        ["[]", /has no cells/],
        ['{"worksheets": [], "nbformat": 3}', /too old/],
        ['{"cells": [], "nbformat": 5}', /version 5/],
        [
          JSON.stringify({ nbformat: 4, cells: Array(1_001).fill({ cell_type: "code", source: "" }) }),
          /more than 1,000/,
        ],
        [JSON.stringify({ nbformat: 4, cells: [{ cell_type: "code", source: [1] }] }), /cell 1 has no source/],
      ])) {
        await open(content, "refused.ipynb");
        await page.waitForFunction(
          (why) => new RegExp(why).test(document.querySelector("#notice")?.textContent ?? ""),
          {},
          why.source,
        );
      }
      await open(JSON.stringify(FOREIGN));
      await includes("#replace", "Open other.ipynb? (3 cells)");
      await page.click("#replace-keep");
      check("the cells are kept", (await cells()) === 4 && (await page.$("#replace[hidden]")));
      await open(JSON.stringify(FOREIGN));
      await page.waitForSelector("#replace:not([hidden])");
      await page.click("#replace-all");
      check("they are replaced", (await cells()) === 3);
      await page.waitForSelector(cell(1, "h2"));
      const markdown = await page.$eval(cell(1, ".markdown"), (it) => [
        it.textContent,
        [...it.querySelectorAll("a, img, script")].map((part) => part.getAttribute("href")).join(),
      ]);
      check(
        `Markdown's HTML is text: ${markdown}`,
        markdown[0]?.includes(ATTACK) && markdown[1] === "https://example.com",
      );
      await page.waitForSelector(cell(2, "iframe"));
      const frame = await page.$eval(cell(2, "iframe"), (it) => [it.getAttribute("sandbox"), it.srcdoc]);
      check(`HTML has a frame without rights: ${frame}`, frame[0] === "" && !/script>|onerror/.test(String(frame[1])));
      const shown = await text(cell(2, ".result"));
      check(
        `outputs: ${shown}`,
        ["printed\nbefore", "'a value'", ATTACK, "red"].every((part) => shown.includes(part)),
      );
      check("what is left out is counted", shown.includes("101 more characters are not kept"));
      check("without colours of a terminal", !shown.includes("\u001b"));
      check("nothing has run", !(await page.evaluate(() => /** @type {any} */ (window).hacked)));
      // Code that nobody here has written or run does not run ahead either, which begins with a timer.
      await page.evaluate(() => {
        const [set, seen] = [setTimeout, /** @type {any} */ (window)];
        seen.timers = 0;
        seen.setTimeout = (/** @type {any} */ act, /** @type {number} */ ms) => (
          (seen.timers += ms === 800 ? 1 : 0),
          set(act, ms)
        );
      });
      const timers = () => page.evaluate(() => /** @type {any} */ (window).timers);
      await page.click(cell(2, ".editor >>> .cm-content"));
      check("not when it is looked at", (await timers()) === 0);
      await page.keyboard.type(" ");
      check("but when it is changed", (await timers()) > 0);
    },

    "shares cells by a link, which runs nothing and asks first": async (check) => {
      await page.evaluate(() => {
        Object.defineProperty(navigator, "clipboard", {
          value: { writeText: async (/** @type {string} */ text) => void Object.assign(window, { copied: text }) },
        });
      });
      await file("link");
      await includes("#notice", "Link copied");
      const link = await page.evaluate(() => /** @type {any} */ (window).copied);
      check(`it holds the cells: ${link.slice(0, 60)}`, link.startsWith(`${site.url}/www/#notebook=`));
      await file("new");
      await page.click("#replace-all");
      check("a new notebook has one cell", (await cells()) === 1);
      await paste(1, "mine = 1");
      await includes("#saved", "Saved");
      await page.goto(link);
      await includes("#replace", "Open the notebook in the link? (3 cells)");
      check("the address no longer has them", page.url() === `${site.url}/www/#notebook`);
      check("mine are there", String(await sources()) === "mine = 1");
      await page.click("#replace-add");
      check("and now both", (await cells()) === 4 && (await sources())[2].trim() === "linked = 1");
      check("nothing ran", (await text(cell(3, ".count"))) === "[ ]");
      const bomb = deflateRawSync(Buffer.alloc(60_000_000, " ")).toString("base64url");
      for (const [code, why] of /** @type {[string, RegExp][]} */ ([
        ["%%%", /cannot be opened: it is damaged/],
        ["AAAA", /it is damaged/],
        [bomb, /its cells are too long/],
        ["A".repeat(200_001), /it is too long/],
      ])) {
        await page.evaluate((code) => void (location.hash = `notebook=${code}`), code);
        await page.waitForFunction(
          (why) => new RegExp(why).test(document.querySelector("#notice")?.textContent ?? ""),
          {},
          why.source,
        );
      }
      // Letters that are not compressed well.
      const noise = Array.from({ length: 60_000 }, (_, n) => ((n * 7_919) ^ (n * n)).toString(36)).join("");
      await paste(1, `text = "${noise.slice(0, 90_000)}"`);
      await file("link");
      await includes("#notice", "too long for a link");
      await state("ready");
    },

    "moves cells, and has cells with text": async (check) => {
      await paste(1, "first = 1");
      const before = await sources();
      await page.click(cell(1, ".editor >>> .cm-content"));
      await page.keyboard.down("Shift");
      await keys("Control", "ArrowDown");
      await page.keyboard.up("Shift");
      check("down by keyboard", String((await sources()).slice(0, 2)) === String([before[1], before[0]]));
      await page.hover(cell(2));
      await page.click(cell(2, ".to-up"));
      check("up by a button", String(await sources()) === String(before));
      await page.click("#add-text");
      await page.waitForSelector(cell(5, ".editor"));
      await page.keyboard.type("# A title *here*");
      await keys("Control", "Enter");
      await page.waitForSelector(cell(5, "h2 em"));
      await page.hover(cell(5));
      await page.click(cell(5, ".to-code"));
      await page.waitForSelector(`${cell(5)}.code-cell`);
      check("it is code now", (await sources())[4] === "# A title *here*");
      await page.click("#help");
      await page.waitForSelector("#shortcuts[open]");
      await page.keyboard.press("Escape");
      await page.waitForSelector("#shortcuts:not([open])");
    },

    "undoes a run, and tries something in a fork": async (check) => {
      const earlier = { cell_type: "code", source: "", execution_count: 9_999, outputs: [] };
      await open(JSON.stringify({ nbformat: 4, cells: [earlier] }));
      await includes("#replace", "Open other.ipynb? (1 cell)");
      await page.click("#replace-add");
      /** The notice after a click. A run clears the one before. */
      const notice = async () => {
        await page.waitForSelector("#notice:not([hidden])");
        return text("#notice");
      };
      await run(5, "x = 1");
      await run(5, "x = 2");
      await page.click("#undo");
      const undone = await notice();
      check(undone, undone.startsWith("Undone. Variables and files are as they were after run"));
      check("the cell says so", await page.$(cell(5, ".undone")));
      check("and no other, whatever number it has from elsewhere", (await page.$$(".undone")).length === 1);
      check("it is undone", (await run(5, "x")).value === "1");
      await page.click("#fork");
      const forked = await notice();
      check(forked, forked.startsWith("Fork 1 has a copy of all variables"));
      check("with its variables", (await run(5, "x = x + 10; x")).value === "11");
      const [main, fork] = await page.$$("#branches button[aria-pressed]");
      check("the fork is chosen", (await fork.evaluate((it) => it.getAttribute("aria-pressed"))) === "true");
      await main.click();
      await page.waitForSelector('#branches li:first-child button[aria-pressed="true"]');
      await run(6, "x = 3");
      await page.click("#undo");
      await page.waitForSelector(cell(6, ".undone"));
      check("what ran in the fork is not undone", !(await page.$(cell(5, ".undone"))));
      check("the first has its own", (await run(5, "x")).value === "1");
      await page.click('#branches button[aria-label="Close Fork 1"]');
      await page.waitForSelector("#branches[hidden]");
      check("and goes on", (await run(5, "x + 1")).value === "2");
    },

    "offers a package that code imports, and shows tables and pictures": async (check) => {
      await run(5, "import matplotlib.pyplot");
      await includes(cell(5, ".offer"), "Load matplotlib and run again");
      const { files, packages } = await realWheels();
      const lock = JSON.stringify({ info: {}, packages });
      const mirror = await serveFiles(new Map([...files, ["pyodide-lock.json", lock]]));
      const panel = ".panel:has(#packages)";
      await page.click(`${panel} details summary`);
      await page.locator("#package-list").fill(`${mirror.url}pyodide-lock.json`);
      await page.click("#package-name");
      await includes("#package-said", "next restart");
      await restart();
      const { badge } = await run(5, "import msgpack\nlen(msgpack.packb([1]))");
      check(`it is missing: ${badge}`, badge === "error");
      await page.locator(cell(5, ".offer button")).click();
      await page.waitForSelector(cell(5, ".value"));
      check("loaded, and run again", (await ended(5)).value === "2");
      check("it is listed", /^msgpack \d/.test(await text("#packages-loaded")));
      await run(5, "import no_such_module_anywhere");
      await includes(cell(5, ".offer"), "No package in the list has a module no_such_module_anywhere");
      await page.locator("#package-name").fill("no-such-package");
      await page.click("#packages button");
      await includes("#package-said", "Not loaded: ");
      await mirror.close();
      // As pandas' Styler writes it.
      const styled = await readFile(join(root, "tests/displays/styled-table.htm"), "utf8");
      const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
      const code = `import base64
class Table:
    def _repr_html_(self): return ${JSON.stringify(styled)} + "<script>parent.hacked = 1</script>"
class Picture:
    def _repr_png_(self): return base64.b64decode("${png}")
display(Picture())
Table()`;
      check("it runs", (await run(5, code)).badge === "ok");
      await page.waitForSelector(cell(5, ".display iframe"));
      const sandbox = await page.$eval(cell(5, ".display iframe"), (it) => it.getAttribute("sandbox"));
      check(`the table has a frame without rights: ${sandbox}`, sandbox === "");
      const frame = await (await page.$(cell(5, ".display iframe")))?.contentFrame();
      const first = await frame?.waitForSelector("#T_t_row0_col0");
      const colour = await first?.evaluate((it) => getComputedStyle(it).backgroundColor);
      check(`and its own colours: ${colour}`, colour === "rgb(144, 238, 144)");
      await page.waitForFunction(
        (img) => /** @type {HTMLImageElement | null} */ (document.querySelector(img))?.naturalWidth === 1,
        {},
        cell(5, ".display img"),
      );
      check("no script of it has run", !(await page.evaluate(() => /** @type {any} */ (window).hacked)));
    },

    "connects a model, and says what is wrong": async (check) => {
      await page.select("#preset", "ollama");
      const address = () => page.$eval('input[name="base-url"]', (it) => /** @type {HTMLInputElement} */ (it).value);
      check(`a preset has its address: ${await address()}`, (await address()) === "http://127.0.0.1:11434/v1");
      await page.locator('input[name="base-url"]').fill(`${NOBODY}/v1`);
      await page.click("#test-model");
      await includes("#tested", `OLLAMA_ORIGINS=${site.url}`);
      await page.select("#preset", "own");
      const origin = endpoint.replace(/\/v1$/, "");
      for (const [url, model, said] of [
        ["ftp://example.com", "", "has to begin with https://"],
        [`${NOBODY}/v1`, "", "Nothing answers there, or it does not allow this page"],
        [`${origin}/page`, "", "not with JSON"],
        [`${origin}/locked`, "", "It needs a key"],
        [`${origin}/elsewhere`, "", "Most base URLs end in /v1"],
        [endpoint, "", "Choose a model, such as tiny, small."],
        [endpoint, "huge", "It has no model “huge”. It has tiny, small."],
        [endpoint, "tiny", "It works: tiny answered in"],
      ]) {
        await page.locator('input[name="base-url"]').fill(url);
        await page.locator('input[name="model-name"]').fill(model);
        await page.locator("#test-model").click();
        await includes("#tested", said);
      }
      check("the names are offered", (await page.$$("#models option")).length === 2);
      await page.select("#preset", "built-in");
    },

    "asks before a function runs": async (check) => {
      await page.click("#add-pay");
      const last = await cells();
      await page.click(cell(last, ".run"));
      await page.waitForSelector("#approval[open]");
      const asked = await text("#approval");
      check(
        asked,
        asked.includes('pay(20, to="Ada")') && asked.includes('Line 4: print("paid", pay(grains, to=name))'),
      );
      check("Enter refuses", (await page.$eval(":focus", (it) => it.textContent)) === "Refuse");
      for (const barrier of await barriers(["light"])) check(`in the dialog: ${barrier}`, false);
      await page.click('#approval button[value="allow"]');
      await includes("#approval-call", "Mallory");
      await page.waitForSelector("#approval[open]");
      await page.keyboard.press("Enter");
      const { output } = await ended(last);
      const wanted = "paid 20 grains of sand for Ada\npay() was refused by the user of this sandbox\n";
      check(output, output === wanted);
    },

    "has no barriers": async (check) => {
      for (const barrier of await barriers()) check(barrier, false);
      await page.setViewport({ width: 390, height: 844 });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth);
      check(`nothing is wider than a phone: ${wide}`, wide <= 390);
      await page.click("#help");
      for (const barrier of await barriers(["light"])) check(`on a phone, with its shortcuts: ${barrier}`, false);
      await page.keyboard.press("Escape");
      await page.setViewport({ width: 1360, height: 1000 });
    },
  };
}

// Clicks through the playground's notebook in a real browser, as a visitor would.
//   node tests/e2e/playground.mjs --browser chromium|firefox
// Leaves screenshots in test-results/ and lists tasks that blocked the page's main thread for more than 50 ms.
import { createHash } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { frame } from "../../dist/assets.js";
import { listen, root } from "./harness.mjs";
import { noting } from "./noting.mjs";
import { notebookSteps } from "./playground-notebook.mjs";
import { visit } from "./visit.mjs";

/** A loop that never ends. */
const LOOP = `grains = 0
while True:
    grains += 1
    if grains % 2_000_000 == 0:
        print(f"{grains:,} grains have fallen")`;

/** Answers to requests for a list of models: status, type and text. @type {Record<string, (number | string)[]>} */
const LISTS = {
  "/v1/models": [200, "application/json", JSON.stringify({ data: [{ id: "tiny" }, { id: "small" }] })],
  "/page/models": [200, "text/html", "<!doctype html>"],
  "/locked/models": [401, "application/json", "{}"],
};

const endpoint = await modelEndpoint();
const visitor = await visit("playground");
const { browser, complaints, files, includes, name, page, screenshot, site, text } = visitor;
const helpers = noting(visitor);
const { cell, ended, keys, logged, paste, restart, run, state, states } = helpers;

/** Chooses the endpoint as the model. */
async function connect() {
  await page.select("#preset", "own");
  await page.locator('input[name="base-url"]').fill(endpoint.url);
  await page.locator('input[name="model-name"]').fill("tiny");
  await page.locator('input[name="key"]').fill("secret");
}

/** The steps in their order. Each finds the page as the step before left it. @type {Record<string, import("./visit.mjs").Step>} */
const STEPS = {
  "the policy has the hashes of the frame's script and the page's own": async (check) => {
    const html = await readFile(join(root, "www/index.html"), "utf8");
    const [, own = ""] = /<script>([^]*?)<\/script>/.exec(html) ?? [];
    for (const script of [frame, own]) {
      const hash = `'sha256-${createHash("sha256").update(script).digest("base64")}'`;
      check(`script-src in www/index.html has to allow ${hash}`, html.includes(hash));
    }
  },

  "boots to ready, shows the way there and what it can do": async (check) => {
    // Notes the view as the parser reaches the header's title, which is long before the page's modules run.
    const { identifier } = await page.evaluateOnNewDocument(() => {
      new MutationObserver((_, observer) => {
        if (!document.querySelector("h1")) return;
        observer.disconnect();
        Object.assign(window, { firstView: document.documentElement.dataset.view });
      }).observe(document, { childList: true, subtree: true });
    });
    await page.goto(`${site.url}/www/#notebook`);
    await page.removeScriptToEvaluateOnNewDocument(identifier);
    const first = await page.evaluate(() => /** @type {any} */ (window).firstView);
    check(`the view that is named is the first: ${first}`, first === "notebook");
    await page.waitForSelector("#steps:not([hidden]) .reached");
    await state("ready");
    check("it was booting before", (await states()).includes("booting"));
    const detail = await text("#state-detail");
    check(`in plain words: ${detail}`, /^Python 3\.\d+\.\d+, isolated, without network$/.test(detail));
    const facts = await text("#python-facts");
    check(`with its versions: ${facts}`, /isolated frame.*bridge.*Python 3\.\d+\.\d+.*Pyodide/.test(facts));
    check("three cells are there", (await page.$$(".cell")).length === 3);
    check("the sample says that it is generated", /generated/.test(await text("#context-name")));
    check("the context's size is shown", /characters · 5,000 lines/.test(await text("#context-size")));
  },

  "peeks at the context and searches it": async (check) => {
    const { badge, output } = await run(1);
    check("it went well", badge === "ok");
    check(`the context was read: ${output}`, /^\d{3},\d{3} characters/.test(output));
    check("the search found the sentence", output.includes("found aboard the Meridian"));
  },

  "asks the model about all chunks and logs every call": async (check) => {
    const { badge, final, facts } = await run(2);
    check("it went well", badge === "ok");
    check(`the answer is right: ${final}`, final.includes("under the sailcloth in hold 3"));
    check(`host calls are counted: ${facts}`, /12 host calls/.test(facts));
    const calls = await logged();
    check("all calls are in the log, answered", calls.length === 12 && calls.every((call) => call.state === "ok"));
    check(
      "with their time",
      calls.every((call) => /ms|s/.test(call.shown)),
    );
    check("prompt and answer can be read", /found\?/.test(calls[0].prompt) && /hold 3/.test(calls[0].answer));
  },

  "runs a cell while it is written, and counts that": async (check) => {
    await page.click("#add-cell");
    await paste(4, "ahead = sum(range(1_000_000))\nahead");
    await includes("#ahead-brought", "1 run ahead, 1 finished, none used yet");
    check("nothing of it is there", (await page.$('#variable-rows button[title="Show ahead"]')) === null);
    check("it is what it comes to", (await run(4)).value === "499999500000");
    await includes("#ahead-brought", "1 used: ");
    await page.waitForSelector('#variable-rows button[title="Show ahead"]');
    await page.hover(cell(4));
    await page.click(cell(4, ".to-close"));
  },

  "lists variables and shows the value of one": async (check) => {
    await page.waitForSelector("#variable-rows tr");
    const rows = await page.$$eval("#variable-rows tr", (trs) => trs.map((tr) => tr.innerText.replace(/\s+/g, " ")));
    check(`chunks is a list of 11: ${rows}`, rows.includes("chunks list 11"));
    await page.click('#variable-rows button[title="Show question"]');
    await includes("#variable-value", "Where was the missing crate");
    check("it opened", await page.$("#variable-view:not([hidden])"));
  },

  "streams output while a cell runs, and stops it with its variables kept": async (check) => {
    await page.locator("#timeout").fill("600");
    await paste(3, LOOP);
    await page.click(cell(3, ".run"));
    await includes(cell(3, ".output"), "2,000,000 grains");
    check("it still runs", (await page.$eval(cell(3), (it) => it.dataset.state)) === "running");
    check("its clock runs", /running · [\d.]+ m?s of 10 min/.test(await text(cell(3, ".clock"))));
    check("the badge says so", (await text("#state-name")) === "running");
    await screenshot("running");
    await page.click("#stop");
    const { badge, words, output } = await ended(3);
    check(`it was interrupted: ${badge}`, badge === "interrupted");
    check(`in plain words: ${words}`, words === "You stopped it. All variables are kept.");
    check("its output is kept", output.includes("2,000,000 grains"));
    await page.waitForSelector('#variable-rows button[title="Show grains"]');
  },

  "looks right in light and dark, wide and narrow": async (check) => {
    await screenshot("light", 1360);
    if (name === "chromium") {
      await page.emulateMediaFeatures([
        { name: "prefers-color-scheme", value: "dark" },
        { name: "prefers-reduced-motion", value: "reduce" },
      ]);
      const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      check(`the dark theme is dark: ${dark}`, dark === "rgb(20, 18, 14)");
      await screenshot("dark", 1360);
      await page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "reduce" }]);
    }
    await screenshot("phone", 390);
    const [inner, scroll] = await page.evaluate(() => [innerWidth, document.documentElement.scrollWidth]);
    check(`nothing is wider than a phone: ${scroll} > ${inner}`, scroll <= inner);
    await page.setViewport({ width: 1360, height: 1000 });
  },

  "ends a runaway loop at the time limit": async (check) => {
    await page.locator("#timeout").fill("0.5");
    const { badge, words } = await run(3, LOOP);
    check(`outcome: ${badge}`, badge === "timeout");
    check(`in plain words: ${words}`, /The time limit of 500 ms was reached.*All variables are kept/.test(words));
    await page.locator("#timeout").fill("60");
    const { value } = await run(3, "grains > 0, len(chunks)");
    check(`the variables are there: ${value}`, value === "(True, 11)");
  },

  "shows errors with their traceback folded, and printed HTML as text": async (check) => {
    await page.locator("#timeout").fill("10");
    const html = '<img src=x onerror="document.title=1">';
    const code = `import sys\nprint(${JSON.stringify(html)})\nprint("to stderr", file=sys.stderr)\n1 / 0`;
    const { badge, error, output, stderr } = await run(3, code);
    check(`outcome: ${badge}`, badge === "error");
    check(`the error: ${error}`, error === "ZeroDivisionError: division by zero");
    check("the HTML is text", output.includes(html) && !(await page.$(".output img")));
    check("stderr is told apart", stderr === "to stderr\n");
    check("the traceback is folded", await page.$(cell(3, ".failure details:not([open])")));
    check("and has the line", /1 \/ 0/.test(await text(cell(3, ".failure details pre"))));
    await page.click(cell(3, ".failure summary"));
  },

  "prints 100 MB without a big page": async (check) => {
    const { badge, output, facts } = await run(
      3,
      'for _ in range(1000):\n    print("sand " * 20_000)\nprint("the end")',
    );
    check(`outcome: ${badge}`, badge === "ok");
    check(`what is left out is counted: ${facts}`, /99,\d{3},\d{3} characters of output left out/.test(facts));
    check(`the page keeps little: ${output.length}`, output.length < 45_000);
    check("the beginning and the end", output.startsWith("sand sand") && output.endsWith("the end\n"));
    const code = "import sys\nfor n in range(2_000):\n    print(n, file=sys.stderr if n % 2 else sys.stdout)";
    const mixed = await run(3, code);
    check(`outcome: ${mixed.badge}`, mixed.badge === "ok");
    const nodes = await page.$eval(cell(3, ".output"), (it) => it.getElementsByTagName("*").length);
    check(`few elements: ${nodes}`, nodes < 1_000);
    check("the first and the last", mixed.output.startsWith("0\n1\n2\n") && mixed.output.endsWith("1998\n1999\n"));
    check("and that something is not shown", await page.$(cell(3, ".gap:not(:empty)")));
    const lines = (await run(3, "print('x\\n' * 20_000)")).output.split("\n").length;
    check(`few lines: ${lines}`, lines < 1_000);
  },

  "goes on with its variables when Python has to be ended": async (check) => {
    await page.locator("#timeout").fill("0.5");
    const stubborn = "while True:\n    try:\n        while True: pass\n    except BaseException: pass";
    const { badge, words } = await run(3, `kept = [1]\n${stubborn}`);
    check(`outcome: ${badge}`, badge === "timeout");
    check(
      `in plain words: ${words}`,
      /The time limit.*Python was restarted and its variables are as they were after run \d+/.test(words),
    );
    // The page asks for the variables after the run, and the new guest answers.
    const listed = page.waitForSelector('#variable-rows button[title="Show chunks"]');
    check("the variables are listed", (await listed.catch(() => null)) !== null);
    await screenshot("restored", 1360);
    await page.setViewport({ width: 1360, height: 1000 });
    await page.locator("#timeout").fill("60");
    const { value } = await run(3, "len(context) > 400_000, 'chunks' in globals()");
    check(`they are back: ${value}`, value === "(True, True)");
    await page.locator("#timeout").fill("10");
  },

  "takes a file and pasted text as the context": async (check) => {
    const file = join(files, "context.txt");
    await writeFile(file, "Größe: zwölf\n".repeat(100_000));
    const input = /** @type {import("puppeteer-core").ElementHandle<HTMLInputElement>} */ (
      await page.$("#context-file")
    );
    await input.uploadFile(file);
    await includes("#context-size", "1,300,000 characters · 100,000 lines");
    check("its name is shown", (await text("#context-name")) === "context.txt");
    check("Python has it", (await run(3, "len(context), context[-7:]")).value === "(1300000, ' zwölf\\n')");
    await page.click("#context-paste summary");
    await page.locator("#context-text").fill("one\ntwo");
    await page.click("#context-use");
    await includes("#context-size", "7 characters · 2 lines");
    check("Python has that too", (await run(3, "context")).value === "'one\\ntwo'");
    await page.click("#context-sample");
    await includes("#context-size", "5,000 lines");
  },

  "answers rlm_query by a sandbox of its own": async (check) => {
    await page.click("#clear-calls");
    await page.click("#add-rlm");
    const { badge, output } = await run(4);
    check(`it went well: ${badge}`, badge === "ok");
    check(`both answers: ${output}`, /missing from the Petrel/.test(output) && /under the sailcloth/.test(output));
    const calls = await logged();
    check(`calls of the sub-sandboxes: ${calls.length}`, calls.filter(({ nested }) => nested).length === 2);
    check("no sandbox is left over, but a spare and one that works ahead", (await page.$$("iframe")).length <= 3);
  },

  "asks an OpenAI-compatible endpoint, and lets go of it when stopped": async (check) => {
    await connect();
    const { value } = await run(4, 'llm_query("Say hello")');
    check(`the endpoint's answer: ${value}`, value === "'tiny, with its key: Say hello'");
    await paste(4, 'llm_query("never answer")');
    await page.click(cell(4, ".run"));
    await page.waitForSelector('.call[data-state="pending"]');
    await includes(cell(4, ".clock"), "waiting for the model");
    await page.click(cell(4, ".run"));
    check("the cell was interrupted", (await ended(4)).badge === "interrupted");
    check("the log says aborted", (await logged())[0].state === "aborted");
    await endpoint.abandoned;
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
    check(`the key is nowhere stored: ${stored.length}`, !/secret/.test(stored) && !(await page.cookies()).length);
    const refused = await run(4, 'llm_query("fail")');
    check(`a failure is told: ${refused.error}`, /HostCallError.*answered 500/.test(refused.error));
    await page.select("#preset", "built-in");
  },

  "adds, deletes and runs cells by keyboard": async (check) => {
    await paste(4, "first = 1");
    await keys("Control", "Enter");
    check("Ctrl+Enter runs", (await ended(4)).badge === "ok");
    check("and adds no cell", (await page.$$(".cell")).length === 4);
    await keys("Shift", "Enter");
    await page.waitForSelector(cell(5));
    await ended(4);
    const focused = await page.evaluate(() => document.activeElement?.closest(".cell")?.getAttribute("aria-label"));
    check(`Shift+Enter moves on to a new cell: ${focused}`, focused === "Cell 5");
    await page.keyboard.type("first + 1");
    await keys("Control", "Enter");
    check("what is typed is run", (await ended(5)).value === "2");
    await page.hover(cell(5));
    await page.click(cell(5, ".to-close"));
    check("it is gone", (await page.$$(".cell")).length === 4);
  },

  "runs all cells up to the first that fails": async (check) => {
    await paste(3, "raise ValueError('stop here')");
    await page.evaluate(() => {
      const seen = /** @type {any} */ (window);
      seen.gaps = 0;
      seen.watch = setInterval(() => {
        const isBusy = document.querySelector('.code-cell:not([data-state="idle"])');
        if (isBusy && document.querySelector("#undo:not([disabled])")) seen.gaps++;
      });
    });
    await page.click("#run-all");
    check("the first two ran", (await ended(1)).badge === "ok" && (await ended(2)).badge === "ok");
    check("the third failed", (await ended(3)).badge === "error");
    const gaps = await page.evaluate(() => {
      const { gaps, watch } = /** @type {any} */ (window);
      clearInterval(watch);
      return gaps;
    });
    check(`nothing can be undone in between: ${gaps}`, gaps === 0);
    await state("ready");
    const ids = await page.$$eval(".count", (counts) => counts.map((it) => Number(it.textContent?.slice(1, -1))));
    check(`the fourth did not run: ${ids}`, ids[2] > ids[1] && ids[1] > ids[0] && ids[3] < ids[0]);
  },

  "leaves out cells that are deleted while others run": async (check) => {
    await connect();
    await paste(1, 'llm_query("answer later")');
    await paste(2, "deleted = True");
    await paste(3, "last = 1");
    await page.click("#run-all");
    await includes(cell(1, ".clock"), "waiting for the model");
    await page.hover(cell(2));
    await page.click(cell(2, ".to-close"));
    endpoint.answerNow();
    await page.waitForSelector('#variable-rows button[title="Show last"]');
    check("the deleted one did not run", (await run(1, "'deleted' in globals()")).value === "False");
    await page.click("#add-cell");
    await page.select("#preset", "built-in");
    await state("ready");
  },

  "restarts with the context and without the variables": async (check) => {
    await page.waitForSelector('#variable-rows button[title="Show chunks"]');
    await page.locator("#timeout").fill("600");
    await paste(3, "print('begun')\nwhile True: pass");
    await page.click(cell(3, ".run"));
    await includes(cell(3, ".output"), "begun");
    await page.click("#restart");
    await includes(cell(3, ".result"), "It did not finish: the sandbox was restarted or shut down.");
    check("with what it had printed", (await text(cell(3, ".output"))) === "begun\n");
    await state("ready");
    const { value } = await run(4, "len(context) > 400_000, 'chunks' in globals()");
    check(`as it should be: ${value}`, value === "(True, False)");
    await page.waitForSelector('#variable-rows button[title="Show chunks"]', { hidden: true });
    check("the old frame is gone", (await page.$$("iframe")).length <= 2); // the new guest's frame, and a spare's
    await page.click(cell(3, ".run"));
    await state("running");
    await page.click(cell(3, ".run"));
    check("cells run and stop as before", (await ended(3)).badge === "interrupted");
    await page.locator("#timeout").fill("10");
  },

  "shuts down and starts again": async (check) => {
    await page.click("#shut-down");
    await state("destroyed");
    check("no frame is left", (await page.$$("iframe")).length === 0);
    await page.click(cell(4, ".run"));
    await includes(cell(4, ".result"), "It did not finish");
    await page.click("#start");
    await state("ready");
    check("it runs", (await run(4, "6 * 7")).value === "42");
  },

  "guesses what is run next, when that is wanted": async (check) => {
    await page.click("#ahead"); // a hint at the cell itself would displace the guess
    await page.click("#guesses");
    await restart();
    check("it runs", (await run(4, 'text = ("x" * 99 + " ") * 500_000; len(text)')).value === "50000000");
    await includes("#ahead-brought", "Guessed from the last code: 1 run ahead, 1 finished");
    await page.click("#guesses");
    await page.click("#ahead");
    await page.click("#restart");
    await state("ready");
  },

  "says why it could not start, and tries again": async (check) => {
    const other = await browser.newPage();
    let offline = true;
    await other.setRequestInterception(true);
    other.on("request", (request) =>
      offline && request.url().endsWith("guest.txt") ? request.abort() : request.continue(),
    );
    await other.goto(`${site.url}/www/#notebook`);
    await other.waitForSelector('#state[data-state="failed"]');
    const detail = await other.$eval("#state-detail", (it) => it.textContent ?? "");
    check(`what is missing: ${detail}`, detail.includes("guest.txt"));
    offline = false;
    await other.click("#start");
    await other.waitForSelector('#state[data-state="ready"]');
    await other.close();
  },

  ...notebookSteps(visitor, helpers, endpoint.url),

  "leaves the console clean": async (check) => {
    for (const complaint of complaints) check(complaint, expected(complaint));
  },
};

await visitor.go(STEPS, { always: /boots|console/ });
endpoint.close();
await visitor.end();

/**
 * Recognises the browser's own messages: about failures of the endpoint and of a list of packages, which tests ask for, and about the
 * scripts that tests put into every document, which may not run in a frame without rights.
 * @param {string} complaint
 */
function expected(complaint) {
  return /status of (500|401|404)|ERR_CONNECTION_REFUSED|Cross-Origin Request Blocked|Blocked script execution in 'about:srcdoc'/.test(
    complaint,
  );
}

/** Starts an OpenAI-compatible endpoint that repeats the prompt. */
async function modelEndpoint() {
  let letGo = () => {};
  const abandoned = new Promise((resolve) => (letGo = () => resolve(undefined)));
  let answerNow = () => {};
  const later = new Promise((resolve) => (answerNow = () => resolve(undefined)));
  const server = createServer((request, response) => {
    const cors = { "Access-Control-Allow-Origin": "*", "Access-Control-Allow-Headers": "*" };
    if (request.method === "OPTIONS") {
      const headers = { ...cors, "Access-Control-Allow-Headers": "authorization, content-type" };
      return void response.writeHead(204, headers).end();
    }
    if (request.method === "GET") {
      const [status, type, text] = LISTS[request.url ?? ""] ?? [404, "text/plain", "not found"];
      return void response.writeHead(Number(status), { ...cors, "Content-Type": String(type) }).end(text);
    }
    let body = "";
    request.setEncoding("utf8").on("data", (chunk) => (body += chunk));
    request.on("end", async () => {
      const { model, messages } = JSON.parse(body);
      const prompt = messages[0].content;
      if (prompt === "never answer") return void response.on("close", letGo);
      if (prompt === "answer later") await later;
      if (prompt === "fail") return void response.writeHead(500, cors).end("out of sand");
      const key = request.headers.authorization === "Bearer secret" ? "with its key" : "without";
      const content = `${model}, ${key}: ${prompt}`;
      response.writeHead(200, { ...cors, "Content-Type": "application/json" });
      response.end(JSON.stringify({ choices: [{ message: { role: "assistant", content } }] }));
    });
  });
  const { url, close } = await listen(server);
  // `abandoned` resolves when the page has closed the request that is never answered.
  return { url: `${url}/v1`, abandoned, answerNow, close };
}

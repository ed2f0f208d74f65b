// Asks questions in the playground in a real browser, as a visitor would, and watches the runs.
//   node tests/e2e/playground-ask.mjs --browser chromium|firefox
// Leaves screenshots in test-results/ and lists tasks that blocked the page's main thread for more than 50 ms.
import { KEY, asking, faintTexts } from "./asking.mjs";
import { hostileTrajectory, longTrajectory } from "./playground-trajectories.mjs";
import { startModelServer } from "./rlm-server.mjs";
import { visit } from "./visit.mjs";

const NEEDLE = "The lamp of the third lighthouse is mended with copper wire.";

const server = await startModelServer();
const visitor = await visit("playground-ask");
const { barriers, complaints, includes, name, page, screenshot, site, text } = visitor;
const { answered, ask, choose, endpoint, exported, open, runs, shownRun, statuses, value, watch } = asking(
  visitor,
  server.url,
);

/** @param {string} selector */
const isShown = (selector) => page.$eval(selector, (it) => it.checkVisibility());

/** The steps in their order. Each finds the page as the step before left it. @type {Record<string, import("./visit.mjs").Step>} */
const STEPS = {
  "opens with a question, and with a recorded run to look at": async (check) => {
    await page.goto(`${site.url}/www/`);
    await page.waitForSelector("#answer:not([hidden])");
    check("it asks", (await value("#question")).includes("missing crate"));
    check(
      `the recording says what it is: ${await text("#run-kind")}`,
      /recording.*not an LLM/.test(await text("#run-kind")),
    );
    check("with its answer", /under the sailcloth in hold 3/.test(await text("#answer-text")));
    const tree = ["0", "0.0", "0.1", "0.2", "0.3"];
    check(`the tree: ${await runs(tree)}`, String(await runs()) === String(tree));
    check(
      "and how each ended",
      (await statuses()).every((status) => status === "answered"),
    );
    check(
      `what it spent: ${await text("#meters")}`,
      /Calls\d\d of 500.*Tokens[\d,]+Cost0Time[\d.]+ s of 10 min/.test(await text("#meters")),
    );
    check("no notebook is started", !(await isShown("#notebook")) && !(await page.$(".cell")));
    await screenshot("first", 1360);
    await page.setViewport({ width: 1360, height: 1000 });
  },

  "starts Python on load, and has the answer in sight without scrolling": async (check) => {
    await page.setViewport({ width: 1280, height: 800 });
    const bottom = () => page.$eval("#answer-text", (it) => it.getBoundingClientRect().bottom);
    check(`the recording's answer: ${await bottom()}`, (await bottom()) < 800);
    await page.waitForSelector('#state[data-state="ready"]');
    const states = await page.evaluate(() => /** @type {any} */ (window).states);
    check(`it was starting before: ${states}`, states.includes("booting"));
    await page.setViewport({ width: 1360, height: 1000 });
  },

  "plays the recording from its beginning": async (check) => {
    await watch();
    await page.waitForFunction(() => document.querySelector("#answer[hidden]") && document.querySelector(".draft"));
    check("it is on its way", (await text("#run-badge")) === "running");
    await page.waitForSelector('.run-row[data-run="0.2"]');
    await page.click("#player-play");
    const [before, tree] = [await text("#player-text"), await runs()];
    check(`it stands: ${before}`, /^\d+ of \d+ events$/.test(before) && (await text("#player-play")) === "Play");
    await page.click("#player-step");
    await page.waitForFunction((before) => document.querySelector("#player-text")?.textContent !== before, {}, before);
    check("one step further", number(await text("#player-text")) === number(before) + 1);
    await page.$eval("#player-position", (it) => {
      /** @type {HTMLInputElement} */ (it).value = "5";
      it.dispatchEvent(new Event("input"));
    });
    // The position was 15 or 25 before, so this waits for the new one.
    await page.waitForFunction(() => /^5 of /.test(document.querySelector("#player-text")?.textContent ?? ""));
    check(`and back: ${await runs(["0"])}`, tree.length > 1 && String(await runs()) === "0");
    await page.select("#player-speed", "16");
    await page.click("#player-play");
    await page.waitForSelector("#answer:not([hidden])");
    await includes("#player-play", "Play again");
  },

  "runs the recording again and comes to the same answer": async (check) => {
    await page.locator("#run-again").click(); // once it no longer moves
    await page.waitForSelector("#run-stop:not([hidden])");
    await page.waitForSelector("#run-verdict:not([hidden])");
    check(
      `it says so: ${await text("#run-verdict")}`,
      (await text("#run-verdict")) === "Same answer as in the recording.",
    );
    check(`it has run now: ${await text("#run-kind")}`, /Python runs now/.test(await text("#run-kind")));
  },

  "answers a question about a dropped file of 5 MB by its built-in policy": async (check) => {
    await page.$eval(
      "#drop",
      (drop, needle) => {
        const filler = Array.from(
          { length: 40_000 },
          (_, n) => `Entry ${n}: the tide table of day ${n * 7} was copied, with care, by hand, twice.\n`,
        );
        filler.splice(27_123, 0, `${needle}\n`);
        const whole = filler.join("").repeat(2).slice(0, 5_000_000);
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([whole], "lighthouses.txt"));
        const event = (/** @type {string} */ type) =>
          new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer });
        drop.dispatchEvent(event("dragenter"));
        drop.dispatchEvent(event("dragover"));
        drop.dispatchEvent(event("drop"));
      },
      NEEDLE,
    );
    await includes("#sources", "lighthouses.txt");
    check(`its size: ${await text("#sources")}`, (await text("#sources")).includes("5.0 MB"));
    await includes("#source-peek", "Entry 0");
    await page.setViewport({ width: 1280, height: 800 });
    await ask("How was the lamp of the third lighthouse mended?");
    await page.waitForSelector("#run-stage:not([hidden])");
    check(`it says what happens: ${await text("#run-stage-text")}`, /…$/.test(await text("#run-stage-text")));
    check("the one button is to stop", (await page.$("#ask-run[hidden]")) && (await page.$("#ask-stop:enabled")));
    await page.waitForSelector("#ask-run:disabled");
    await page.waitForSelector(".draft");
    await screenshot("running");
    await answered();
    check(
      `the answer: ${await text("#answer-text")}`,
      (await text("#answer-text")).includes("mended with copper wire"),
    );
    const end = await page.$eval("#answer-text", (it) => it.getBoundingClientRect().bottom);
    const scrolled = await page.evaluate(() => scrollY);
    check(`in sight without scrolling: ${end}, ${scrolled}`, end < 800 && scrolled === 0);
    check("in place of what happened", await page.$("#run-stage[hidden]"));
    await page.setViewport({ width: 1360, height: 1000 });
    await page.waitForSelector('.run-row[data-run="0.1"]');
    check(`by runs of its own: ${await runs()}`, (await runs()).length > 2);
    check(
      `its context: ${await text("#selected-run")}`,
      /context str, 5,000,000 characters/.test(await text("#selected-run")),
    );
  },

  "goes on after a reload in the middle of the question": async (check) => {
    await ask("How was the lamp of the third lighthouse mended?");
    await page.waitForSelector("#turns .turn");
    await page.waitForFunction(async () => {
      const { listPersisted } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      const [run] = await listPersisted();
      return run?.execution >= 1; // a reply is kept
    });
    await page.reload();
    await page.waitForSelector("#ask-run:disabled");
    check(`the question: ${await value("#question")}`, (await value("#question")).includes("third lighthouse"));
    check(`its file: ${await text("#sources")}`, (await text("#sources")).includes("lighthouses.txt"));
    await answered();
    check(
      `the answer: ${await text("#answer-text")}`,
      (await text("#answer-text")).includes("mended with copper wire"),
    );
    await includes("#run-verdict", "It went on from");
    const isForgotten = await page.waitForFunction(async () => {
      const { listPersisted } = await import(/** @type {any} */ ("/pyodide-glue/index.js"));
      return localStorage.length === 0 && (await listPersisted()).length === 0;
    });
    check("nothing of it is kept after its end", isForgotten);
    await page.waitForSelector('.run-row[data-run="0.1"]');
  },

  "shows a child's turns, its calls with prompt and answer": async (check) => {
    await page.click('.run-row[data-run="0.1"]');
    await includes("#selected-run", "Run 0.1");
    check("its turns", (await page.$$("#turns .turn")).length === 2);
    await page.waitForSelector("#turns .call");
    await page.click("#turns .call summary");
    await page.waitForSelector("#turns .call-body pre");
    const [prompt, answer] = await page.$$eval("#turns .call-body pre", (pres) =>
      pres.map((pre) => pre.textContent ?? ""),
    );
    check(`prompt: ${prompt.slice(0, 80)}`, prompt.startsWith("How was the lamp of the third lighthouse mended?"));
    check(`answer: ${answer.slice(0, 80)}`, answer.length > 10);
    check("its answer to the run that asked", (await text("#run-end")).includes("answer to the run that asked"));
    await page.focus('.run-row[data-run="0.1"]');
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("Home");
    check("arrows move through the tree", (await page.$eval(":focus", (it) => it.getAttribute("data-run"))) === "0");
    check("and select", await page.$('.run-row[data-run="0"][aria-selected="true"]'));
    check("only one is a tab stop", (await page.$$('.run-row[tabindex="0"]')).length === 1);
  },

  "counts in Python, and gives the answer the form of a schema": async (check) => {
    await page.click("#settings > summary");
    await page
      .locator("#schema")
      .fill('{ "type": "object", "properties": { "count": { "type": "integer" } }, "required": ["count"] }');
    await ask('How many lines have "day 700 "?');
    await answered();
    check(`typed: ${await text("#answer-text")}`, JSON.parse(await text("#answer-text")).count === 2);
    check(
      `checked: ${await text("#answer-facts")}`,
      (await text("#answer-facts")).startsWith("valid under the schema"),
    );
  },

  "tells what is wrong with the settings beside them": async (check) => {
    /** @param {string} place @param {RegExp} problem */
    const refused = async (place, problem) => {
      await page.click("#ask-run");
      await page.waitForSelector(`#${place}-problem:not([hidden])`);
      const told = await text(`#${place}-problem`);
      check(`${place}: ${told}`, problem.test(told));
    };
    await page.locator("#schema").fill("{ nonsense");
    await refused("schema", /^It is not JSON: /);
    await page.locator("#schema").fill('{ "pattern": "x" }');
    await refused("schema", /^answerSchema.*pattern/);
    check("its field is marked", await page.$("#schema[aria-invalid]"));
    await page.locator("#schema").fill("");
    await page.locator('input[name="max-iterations"]').fill("0");
    await refused("limits", /^Turns per run: /);
    await page.locator('input[name="max-iterations"]').fill("20");
    await page.select("#preset", "own");
    await refused("model", /baseUrl/);
    await page.locator("#question").fill(" ");
    await refused("question", /Enter a question/);
    check("nothing runs", (await page.$("#ask-stop:disabled")) && (await page.$$("iframe")).length <= 1);
  },

  "is driven by an endpoint, which recurses": async (check) => {
    await choose([
      ["teal.txt", Array.from({ length: 4000 }, (_, n) => `${n} ${n % 3 ? "grey" : "teal"} is ${n % 10}\n`).join("")],
    ]);
    await endpoint("tree");
    await page.locator('input[name="price-input"]').fill("1000");
    await ask("level 1, parts 3: add up the teal values");
    await answered();
    const sum = Array.from({ length: 4000 }, (_, n) => (n % 3 ? 0 : n % 10)).reduce((sum, n) => sum + n, 0);
    check(`the answer: ${await text("#answer-text")}`, (await text("#answer-text")) === String(sum));
    const tree = ["0", "0.0", "0.1", "0.2"];
    check(`its runs: ${await runs(tree)}`, String(await runs()) === String(tree));
    check(`it cost something: ${await text("#meters")}`, /Cost[1-9]|Cost0\.\d*[1-9]/.test(await text("#meters")));
    check(`driven by: ${await text("#run-kind")}`, (await text("#run-kind")) === "Live, driven by tree");
    check("the code is coloured", await page.waitForSelector("#turns .syn-call"));
    const shown = await page.$$eval("#turns .turn", (turns) => turns.map((turn) => turn.textContent ?? ""));
    check(
      `both blocks of the second turn: ${shown[1]}`,
      /rlm_query_batched/.test(shown[1]) && /and then/.test(shown[1]) && /FINAL/.test(shown[1]),
    );
  },

  "exports what happened, opens it as the same view, and runs it again": async (check) => {
    const before = await shownRun();
    const file = await exported();
    check(`its name: ${file.name}`, /^sandglass-run-\d{14}\.jsonl$/.test(file.name));
    check(
      "JSON lines",
      file.text
        .trim()
        .split("\n")
        .every((line) => typeof JSON.parse(line).type === "string"),
    );
    check("without the key", !file.text.includes(KEY) && file.text.includes("runEnded"));
    const { keys } = await (await fetch(`${server.url}/log`)).json();
    check(`which the endpoint got: ${keys}`, keys.includes(`Bearer ${KEY}`));
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
    check(`and which is nowhere stored: ${stored}`, stored === "[{},{}]" && !(await page.cookies()).length);

    await open(file.text);
    const after = await shownRun();
    for (const part of Object.keys(before))
      check(`another ${part}:\n${before[part]}\n${after[part]}`, before[part] === after[part]);
    await page.locator("#run-again").click(); // once it no longer moves
    await page.waitForSelector("#run-verdict:not([hidden])");
    check(`again: ${await text("#run-verdict")}`, (await text("#run-verdict")) === "Same answer as in the recording.");
    const { requests } = await (await fetch(`${server.url}/log`)).json();
    await open(file.text);
    await choose([["other.txt", "0 teal is 1\n"]]);
    await page.locator("#run-again").click(); // once it no longer moves
    await page.waitForSelector("#run-verdict:not([hidden])");
    check(
      `with another file: ${await text("#run-verdict")}`,
      /^Not the answer.*choose the same files first/.test(await text("#run-verdict")),
    );
    check("without the endpoint", (await (await fetch(`${server.url}/log`)).json()).requests === requests);
  },

  "stops while the model is thinking, and while Python waits for it": async (check) => {
    await endpoint("endless");
    await fetch(`${server.url}/faults`, { method: "POST", body: JSON.stringify([{ kind: "hang" }]) });
    await ask("never answered");
    await page.waitForSelector('.turn[data-state="asked"]');
    await page.click("#run-stop");
    await answered();
    check(`it says so: ${await text("#answer-title")}`, (await text("#answer-title")) === "No answer: stopped");

    // So many turns that the run cannot end before the clicks, however slow they are.
    await page.locator('input[name="max-iterations"]').fill("100");
    await page.locator('input[name="max-calls"]').fill("5000");
    await ask("goes on and on");
    await page.waitForFunction(() => document.querySelectorAll("#turns .turn").length >= 4);
    check("older turns are folded", (await page.$$("#turns .turn > details[open]")).length === 2);
    await page.click("#ask-stop");
    await answered();
    check(`stopped: ${await statuses()}`, (await statuses())[0] === "stopped");
    check("it can be exported", (await exported()).text.includes('"outcome":"aborted"'));
    await page.waitForFunction(() => document.querySelectorAll("iframe").length === 0);
    const connections = async () => (await (await fetch(`${server.url}/log`)).json()).open;
    const end = performance.now() + 60_000; // the server hears of the end later than the page
    while ((await connections()) > 0 && performance.now() < end) await new Promise((go) => setTimeout(go, 20));
    check(`no connection is left: ${await connections()}`, (await connections()) === 0);
    await page.locator('input[name="max-iterations"]').fill("20");
  },

  "ends at a limit, and says which": async (check) => {
    await page.locator('input[name="max-calls"]').fill("4");
    await ask("goes on and on");
    await answered();
    check(`${await text("#answer-title")}`, (await text("#answer-title")) === "No answer: budget used up");
    check(`${await text("#answer-text")}`, /4/.test(await text("#answer-text")));
    check(`${await text("#meters")}`, (await text("#meters")).includes("Calls4 of 4"));
    await page.locator('input[name="max-calls"]').fill("500");
  },

  "shows what is hostile as text": async (check) => {
    const attack = `<img src=x onerror="hacked=1"><script>hacked=1</script>`;
    await choose([
      [`${attack}.txt`, attack.repeat(50)],
      ["__proto__", "polluted"],
    ]);
    check("the name of a file", (await text("#sources")).includes(attack));
    await endpoint("script");
    const replies = [
      `\`\`\`repl\nclass Evil:\n    def _repr_html_(self):\n        return ${JSON.stringify(attack)}\nEvil()\n\`\`\``,
      `${attack}\n\`\`\`repl\nprint(list(context), ${JSON.stringify(attack)})\nllm_query(${JSON.stringify(attack)})\nraise ValueError(${JSON.stringify(attack)})\n\`\`\``,
      `\`\`\`repl\nFINAL(${JSON.stringify(attack)})\n\`\`\``,
    ];
    await ask(JSON.stringify(replies));
    await answered();
    check("the answer", (await text("#answer-text")) === attack);
    await page.click("#turns .turn:first-child > details > summary");
    await page.waitForSelector("#turns .display");
    check("a display", (await text("#turns .display pre")) === attack);
    const turns = await text("#turns");
    check(`prose, output and error: ${turns.slice(0, 300)}`, turns.split(attack).length >= 5);
    check("names of files reached Python", turns.includes("'__proto__'"));

    await open(hostileTrajectory(attack));
    await includes("#answer-text", JSON.stringify(attack));
    check("and its task", (await text("#run-title")) === attack);
    const displays = await page.$$eval(".display", (all) =>
      all.map((it) => [it.querySelector("img")?.src.slice(0, 22), it.textContent]),
    );
    check(
      `pictures are images: ${JSON.stringify(displays)}`,
      String(displays.map(([src]) => src ?? "-")) === "data:image/png;base64,,-,data:image/svg+xml,%3C,-",
    );
    await page.click(".display button");
    const frame = await page.$eval(".display iframe", (it) => [it.getAttribute("sandbox"), it.getAttribute("srcdoc")]);
    check(
      `HTML has a frame that may do nothing: ${frame}`,
      frame[0] === "" && /Content-Security-Policy[^]*><img>$/.test(String(frame[1])),
    );
    await page.click(".display button");
    check("and is text again", !(await page.$(".display iframe")));
    const made = await page.$$eval("#run img, #run script, #sources img", (all) =>
      all.map((it) => it.outerHTML.slice(0, 60)),
    );
    check(
      `no element of it is in the page: ${made}`,
      made.length === 2 && made.every((html) => html.startsWith('<img src="data:image/')),
    );
    check(
      "nothing of it has run",
      (await page.evaluate(() => /** @type {any} */ (window).hacked ?? Reflect.get({}, "polluted"))) === undefined,
    );
  },

  "refuses what is no recording, and says why": async (check) => {
    for (const [content, why] of /** @type {[string, RegExp][]} */ ([
      ["", /does not begin with the start of a run/],
      ["not json\n{}", /line 1 is not JSON/],
      ['{"type":"text","run":"0","time":0,"text":"x"}\n', /does not begin/],
      ['{"type":"runStarted","run":"<b>","time":0}', /its run has no name/],
      ['{"type":"constructor","run":"0","time":0}', /no event of a run/],
      [
        '{"type":"runStarted","run":"0","time":1,"version":9,"task":"","contexts":[],"maxIterations":1,"maxDepth":1}',
        /version 9/,
      ],
      [
        '{"type":"runStarted","run":"0","time":1,"version":1,"task":{},"contexts":[],"maxIterations":1,"maxDepth":1}',
        /its task is not/,
      ],
    ])) {
      await choose([["recording.jsonl", content]], "#recording-file");
      await page.waitForSelector("#run-problem:not([hidden])");
      check(`${content}: ${await text("#run-problem")}`, why.test(await text("#run-problem")));
      await page.$eval("#run-problem", (it) => /** @type {HTMLElement} */ (it.hidden = true));
    }
  },

  "shows a run of thousands of events": async (check) => {
    const trajectory = longTrajectory();
    const events = trajectory.split("\n").length - 1;
    await open(trajectory);
    await page.waitForFunction(() => document.querySelectorAll("#turns .turn").length === 600);
    check(`events: ${events}`, events > 7_000);
    check(`runs: ${(await runs(201)).length}`, (await runs()).length === 201);
    const open2 = await page.$$("#turns .turn > details[open]");
    check("most turns are folded", open2.length === 2);
    check("a batch shows its first calls", (await page.$$("#turns .turn:last-child .call")).length === 8);
    await page.$eval("#turns .turn:last-child .block-calls > button", (it) => /** @type {HTMLElement} */ (it).click());
    check("and more when asked", (await page.$$("#turns .turn:last-child .call")).length === 108);
    const nodes = await page.evaluate(() => document.querySelectorAll("#run *").length);
    check(`elements: ${nodes}`, nodes < 10_000);
    await page.$eval("#player-position", (it) => {
      /** @type {HTMLInputElement} */ (it).value = "1000";
      it.dispatchEvent(new Event("input"));
    });
    await includes("#player-text", "1,000 of ");
    check("it goes back", (await page.$("#answer[hidden]")) !== null);
  },

  "looks right in light and dark, wide and narrow": async (check) => {
    await watch();
    await page.select("#player-speed", "16");
    await page.waitForSelector("#answer:not([hidden])");
    await includes("#player-play", "Play again");
    await screenshot("light", 1360);
    if (name === "chromium") {
      const dark = [
        { name: "prefers-color-scheme", value: "dark" },
        { name: "prefers-reduced-motion", value: "reduce" },
      ];
      await page.emulateMediaFeatures(dark);
      await screenshot("dark", 1360);
      await screenshot("phone-dark", 360);
      await page.emulateMediaFeatures([{ name: "prefers-reduced-motion", value: "reduce" }]);
    }
    await screenshot("tablet", 800);
    await screenshot("phone", 360);
    const [inner, scroll] = await page.evaluate(() => [innerWidth, document.documentElement.scrollWidth]);
    check(`nothing is wider than a phone: ${scroll} > ${inner}`, scroll <= inner);
    await page.$eval("#turns details", (it) => /** @type {HTMLDetailsElement} */ (it.open = true));
    await page.waitForSelector("#turns pre.code");
    const cut = await page.$$eval(
      "#turns pre.code",
      (all) => all.filter((it) => it.scrollWidth > it.clientWidth).length,
    );
    check(`no code is cut: ${cut}`, cut === 0);
    for (const barrier of await barriers(["light"])) check(`on a phone: ${barrier}`, false);
    await page.setViewport({ width: 1360, height: 1000 });
    await page.$eval("#settings", (it) => /** @type {HTMLDetailsElement} */ (it.open = true));
    for (const barrier of await barriers()) check(barrier, false);
    await page.$eval("#settings", (it) => /** @type {HTMLDetailsElement} */ (it.open = false));
  },

  "can be used by keyboard and by name": async (check) => {
    const unnamed = await page.$$eval(
      "#ask button, #ask input, #ask textarea, #ask select, #ask a, #ask summary",
      (all) =>
        all
          .filter((it) => /** @type {HTMLElement} */ (it).checkVisibility())
          .filter((it) => {
            const labels = "labels" in it ? [.../** @type {HTMLInputElement} */ (it.labels ?? [])] : [];
            return ![it.getAttribute("aria-label"), it.textContent, ...labels.map((label) => label.textContent)].some(
              (name) => name?.trim(),
            );
          })
          .map((it) => it.outerHTML.slice(0, 100)),
    );
    check(`everything has a name: ${unnamed}`, unnamed.length === 0);
    const ids = await page.$$eval("[id]", (all) => all.map(({ id }) => id));
    check("ids are unique", new Set(ids).size === ids.length);
    const dangling = await page.$$eval("[aria-labelledby], [aria-describedby]", (all) =>
      all
        .flatMap((it) =>
          `${it.getAttribute("aria-labelledby") ?? ""} ${it.getAttribute("aria-describedby") ?? ""}`
            .trim()
            .split(/\s+/),
        )
        .filter((id) => !document.getElementById(id)),
    );
    check(`references lead somewhere: ${dangling}`, dangling.length === 0);
    for (const scheme of name === "chromium" ? ["light", "dark"] : ["light"]) {
      const features = [
        { name: "prefers-color-scheme", value: scheme },
        { name: "prefers-reduced-motion", value: "reduce" },
      ];
      if (name === "chromium") await page.emulateMediaFeatures(features);
      const faint = await page.evaluate(faintTexts);
      check(`contrast in ${scheme}: ${faint.join("\n")}`, faint.length === 0);
    }
    await page.focus("#question");
    await choose([["small.txt", "The door is blue. The roof is red."]]);
    await page.select("#preset", "built-in");
    await page.locator("#question").fill("What colour is the door?");
    await page.focus("#question");
    await page.keyboard.down("Control");
    await page.keyboard.press("Enter");
    await page.keyboard.up("Control");
    await answered();
    await includes("#answer-text", "The door is blue."); // that of the recording before may still be shown
    check(`Ctrl+Enter asks: ${await text("#answer-text")}`, (await text("#answer-text")) === "The door is blue.");
  },

  "shares its model with the notebook, which starts when it is looked at": async (check) => {
    await page.evaluate(() => scrollTo(0, 500));
    await page.evaluate(() => document.getElementById("to-notebook")?.click()); // a real click would scroll there first
    await page.waitForSelector('#state[data-state="ready"]');
    check("the cells are there", (await page.$$(".cell")).length === 3);
    check("the model's form came along", await page.$("aside #model"));
    check("the other view is hidden", !(await isShown("#ask")));
    check("it is shown from its top", (await page.evaluate(() => scrollY)) === 0);
    await page.click("#to-ask");
    await page.waitForSelector("#ask", { visible: true });
    check("and goes back", await page.$("#settings #model"));
    check("with the run", (await text("#answer-text")) === "The door is blue.");
  },

  "leaves the console clean": async (check) => {
    for (const complaint of complaints) check(complaint, expected(complaint));
    const violations = await page.evaluate(() => /** @type {any} */ (window).violations);
    check(
      `violations of the page's policy: ${violations}`,
      violations.every((/** @type {string} */ it) => it === "script-src-attr inline"),
    );
  },
};

await visitor.go(STEPS, { always: /opens with|console/ });
await server.close();
await visitor.end();

/**
 * Recognises an expected complaint, about the hostile page. Chromium complains of an inline handler when it parses HTML to be
 * sanitized, though it does not run it. Scripts that tests put into every document may not run in a frame without rights.
 * @param {string} complaint
 */
function expected(complaint) {
  return /Executing inline event handler violates|Blocked script execution in 'about:srcdoc'/.test(complaint);
}

/** @param {string} shown */
function number(shown) {
  return Number(shown.replaceAll(",", "").split(" ")[0]);
}

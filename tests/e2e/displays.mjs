// HTML that code shows, sanitized by the page and by a host. A real Chromium shows it and logs the names that it looks up.
//   node tests/e2e/displays.mjs --browser chromium [--only part-of-a-name]     (after cargo build -p sandglass-host --examples)
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { ATTACKS, pieces } from "./displays-attacks.mjs";
import { listen, openBrowser, readArguments, root, Score, serve } from "./harness.mjs";
import { program } from "./host.mjs";
import { randomness } from "./tools.js";

/** @typedef {import("puppeteer-core").Page} Page */
/** @typedef {(all: string[]) => Promise<string[]>} Sanitize */

const { browser: name, only } = readArguments();
const score = new Score(only);
const allowed = JSON.parse(readFileSync(join(root, "crates/core/src/display/html.json"), "utf8"));
const ordinary = (/** @type {string} */ file) => readFileSync(join(root, "tests/displays", file), "utf8");

try {
  await nothingIsLookedUp();
  const host = await openBrowser(name);
  try {
    const page = await host.page();
    for (const [where, sanitize] of Object.entries(sanitizers(page))) {
      const title = (/** @type {string} */ what) => `${where}: ${what}`;
      await score.test(title("only what is allowed is left of anything"), () => onlyAllowed(page, sanitize));
      await score.test(title("ordinary HTML shows"), () => keepsItsLooks(page, sanitize));
      await score.test(title("HTML becomes the same in pages and on hosts"), () => becomesTheSame(sanitize));
      await score.test(title("HTML that is made to be costly costs little"), () => costsLittle(page, sanitize));
    }
    await score.test("page: sections of characters in a drawing are its text", () => cdataSections(page));
    await score.test("a page that requires Trusted Types", () => trustedTypes(host.browser));
    score.add("nothing is thrown into the page", host.uncaught);
  } finally {
    await host.close();
  }
} catch (error) {
  score.fail("the tests could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
}
score.end();

/** The two sanitizers: the page's and the host's. @param {Page} page @returns {Record<string, Sanitize>} */
function sanitizers(page) {
  return {
    page: (all) =>
      page.evaluate(async (all) => {
        const { sanitizeHtml } = await import(/** @type {any} */ ("/dist/display.js"));
        return all.map((html) => sanitizeHtml(html));
      }, all),
    host: async (all) => {
      const input = all.map((html) => `${JSON.stringify(html)}\n`).join("");
      const output = execFileSync(join(dirname(program), "examples/sanitize"), { input, maxBuffer: 1 << 28 });
      return String(output)
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line));
    },
  };
}

/**
 * Shows HTML in frames, one after the other. Without `loads`, waits for none: unsanitized HTML may load for ever.
 * @param {Page} page @param {string[]} all @param {{ sandbox?: string, loads?: boolean }} [options]
 */
function show(page, all, { sandbox = "", loads = true } = {}) {
  return page.evaluate(
    async (all, policy, sandbox, loads) => {
      for (const html of all) {
        const frame = document.createElement("iframe");
        frame.setAttribute("sandbox", sandbox);
        frame.srcdoc = `<!doctype html><meta http-equiv="Content-Security-Policy" content="${policy}">${html}`;
        const loaded = new Promise((resolve) => (frame.onload = resolve));
        document.body.append(frame);
        if (loads) await loaded;
      }
    },
    all,
    allowed.policy,
    sandbox,
    loads,
  );
}

/**
 * Shows every attack. The log of a browser that has ended names all hosts that it looked up, connected to or refused.
 */
async function nothingIsLookedUp() {
  const folder = mkdtempSync(join(tmpdir(), "sandglass-displays-"));
  const log = join(folder, "net.json");
  const canary = createServer((socket) => socket.destroy());
  const { port, close } = await listen(canary);
  const names = Object.keys(ATTACKS);
  const all = (/** @type {string} */ where) => names.map((name, at) => ATTACKS[name](`${where}-${at}.canary.test:81`));
  /** @type {Record<string, string[]>} */
  const shown = {};
  const host = await openBrowser(name, { args: [`--log-net-log=${log}`] });
  try {
    const page = await host.page();
    for (const [where, sanitize] of Object.entries(sanitizers(page))) shown[where] = await sanitize(all(where));
    // Notebooks are given drawings in this form.
    shown.image = all("image").map((html) => `<img src="data:image/svg+xml;base64,${btoa(html)}">`);
    shown.raw = all("raw");
    for (const [where, htmls] of Object.entries(shown)) await show(page, htmls, { loads: where !== "raw" });
    // The browser sends its requests in order: after this one, all earlier ones are in the log.
    const connected = new Promise((resolve) => canary.once("connection", resolve));
    await show(page, [`<link rel=preconnect href="http://127.0.0.1:${port}/">`]);
    await connected;
  } finally {
    await host.close();
    await close();
  }
  const seen = new Set(readFileSync(log, "utf8").match(/\b[a-z]+-\d+\.canary\.test/g));
  rmSync(folder, { recursive: true, force: true });
  const reached = (/** @type {string} */ where, /** @type {number} */ at) => seen.has(`${where}-${at}.canary.test`);
  for (const where of ["page", "host", "image"]) {
    for (const [at, attack] of names.entries())
      await score.test(`${where}: ${attack}`, () =>
        reached(where, at) ? [`its name was looked up: ${shown[where][at]}`] : [],
      );
  }
  await score.test("the log tells of HTML that is not sanitized", () => {
    const heard = names.filter((_, at) => reached("raw", at));
    if (process.env.VERBOSE) console.log(heard.join("\n"));
    return heard.length >= 4 ? [] : [`only of: ${heard.join(", ")}`];
  });
}

/** Parses sanitized HTML as a frame would, and checks every element. @param {Page} page @param {Sanitize} sanitize */
async function onlyAllowed(page, sanitize) {
  const random = randomness(Number(process.env.SEED ?? 7));
  const htmls = Object.values(ATTACKS).map((attack) => attack("canary.test"));
  for (let round = 0; round < 400; round += 1) {
    const length = 2 + Math.floor(random() * 12);
    htmls.push(Array.from({ length }, () => pieces[Math.floor(random() * pieces.length)]).join(""));
  }
  const clean = await sanitize(htmls);
  const found = await page.evaluate(
    (clean, allowed) => {
      const words = (/** @type {string[]} */ ...keys) =>
        new Set(keys.flatMap((key) => allowed[key].join(" ").split(" ")));
      const tags = words("tags", "svgTags");
      const attributes = words("attributes", "svgAttributes");
      const css = words("cssAttributes");
      return clean.map((html) => {
        const document = new DOMParser().parseFromString(`<!doctype html><body>${html}`, "text/html");
        /** @type {string[]} */
        const problems = [];
        for (const element of document.querySelectorAll("head *, body *")) {
          if (!tags.has(element.localName)) problems.push(`<${element.localName}>`);
          if (element.namespaceURI?.includes("Math")) problems.push(`a formula's <${element.localName}>`);
          for (const { name, value } of element.attributes) {
            if (!attributes.has(name) && !css.has(name)) problems.push(`${name}=`);
            const isLink = /^(src|(xlink:)?href)$/.test(name);
            if (isLink && !/^\s*(#|data:(image|audio|video|font)\/)/i.test(value)) problems.push(`${name}="${value}"`);
            if (css.has(name) && reaches(`a{${name}:${value}}`)) problems.push(`${name}="${value}"`);
          }
          if (element.localName === "style" && reaches(element.textContent ?? ""))
            problems.push(`a style sheet: ${element.textContent}`);
        }
        return problems;
      });

      /** Returns true if a style sheet, as the browser reads it, has an address of another site. @param {string} css */
      function reaches(css) {
        const sheet = new CSSStyleSheet();
        sheet.replaceSync(css);
        const text = [...sheet.cssRules].map((rule) => rule.cssText).join("\n");
        const rest = text.replace(/url\("(#|data:)[^"]*"\)/g, "").replace(/"(?:[^"\\]|\\.)*"/g, '""');
        return /\burl\(|\bsrc\(|image-set\(|cross-fade\(|@import/i.test(rest);
      }
    },
    clean,
    allowed,
  );
  return found.flatMap((problems, at) =>
    problems.length > 0 ? [`${problems}\nof ${htmls[at]}\nin ${clean[at]}`] : [],
  );
}

/** Checks HTML that libraries make and people write: it must keep its looks. @param {Page} page @param {Sanitize} sanitize */
async function keepsItsLooks(page, sanitize) {
  const red = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
  const htmls = await sanitize([
    ordinary("table.htm"),
    ordinary("styled-table.htm"),
    ordinary("plot.svg"),
    `<h3 style="color: rgb(1, 2, 3)">Title</h3><p>a <b>bold</b> <a href="https://example.com/">link</a> &amp; &lt;text&gt;<ul><li>1<li>2</ul>
     <details open><summary>more</summary><progress value=3 max=4></progress></details><img alt="dot" src="data:image/png;base64,${red}">`,
    `<!doctype html><html><head><title>hidden</title><style>/* it's */ @media screen { p:nth-child(1) { margin-left: calc(3px + 4px);
     background: linear-gradient(red, blue) } } p::after { content: "<\\2014" }</style></head><body><p>text</p></body></html>`,
    `<svg viewBox="0 0 10 10" width="40"><defs><linearGradient id="g"><stop offset="0" stop-color="red"/></linearGradient>
     <path id="shape" d="M0 0h9v9z"/></defs><use href="#shape" fill="url(#g)"/><text y="5" font-size="3">text</text></svg>`,
  ]);
  await page.evaluate(() => document.body.replaceChildren());
  await show(page, htmls, { sandbox: "allow-same-origin" });
  return page.evaluate(() => {
    const [table, styled, plot, prose, whole, drawing] = [...document.querySelectorAll("iframe")].map((frame) => {
      const inner = /** @type {Document} */ (frame.contentDocument);
      const view = /** @type {Window} */ (frame.contentWindow);
      const find = (/** @type {string} */ selector) => {
        const element = inner.querySelector(selector);
        if (!element) throw new Error(`there is no ${selector} in ${inner.body.innerHTML}`);
        return /** @type {any} */ (element);
      };
      const style = (/** @type {string} */ selector) => view.getComputedStyle(find(selector));
      return { inner, find, style, text: inner.body.innerText.replace(/\s+/g, " ").trim() };
    });
    /** @type {Record<string, [actual: unknown, expected: unknown]>} */
    const facts = {
      "a table's text": [table.text, "price name 0 1.5 <a> 1 -3.0 b & c"],
      "its style": [table.style("tbody th").verticalAlign, "middle"],
      "its border": [table.find("table").border, "1"],
      "a cell's colour": [styled.style("#T_t_row0_col0").backgroundColor, "rgb(144, 238, 144)"],
      "a heading's colour": [styled.style("th").backgroundColor, "rgb(10, 20, 30)"],
      "a caption": [styled.find("caption").innerText, "Prices"],
      "a plot's curve": [plot.find("path[style*='1f77b4']").getBBox().width > 20, true],
      "its marks, which are used": [
        [...plot.inner.querySelectorAll("use")].every((use) => use.getBBox().width > 0),
        true,
      ],
      "its picture": [plot.find("image").getBBox().width > 20, true],
      "its clip path": [/^url\("#\w+"\)$/.test(plot.style("[clip-path]").clipPath), true],
      "its style sheet": [plot.style("path").strokeLinejoin, "round"],
      "a paragraph": [prose.text, "Title a bold link & <text> 1 2 more"],
      "a heading": [prose.style("h3").color, "rgb(1, 2, 3)"],
      "a picture": [prose.find("img").naturalWidth, 1],
      "a bar": [prose.find("progress").position, 0.75],
      "a link that leads nowhere": [prose.find("a").getAttribute("href"), null],
      "a document": [whole.text, "text"],
      "its function": [whole.style("p").marginLeft, "7px"],
      "its colours": [whole.style("p").backgroundImage, "linear-gradient(rgb(255, 0, 0), rgb(0, 0, 255))"],
      "a drawing": [drawing.find("use").getBBox().width, 9],
      "its colour": [drawing.style("use").fill, 'url("#g")'],
      "its gradient": [drawing.find("linearGradient").tagName, "linearGradient"],
      "its text": [drawing.text, "text"],
    };
    return Object.entries(facts).flatMap(([fact, [actual, expected]]) =>
      actual === expected ? [] : [`${fact}: ${actual}, not ${expected}`],
    );
  });
}

/** Checks the cases of `tests/displays/sanitized.json`, which `host/tests/guests/displays.rs` reads as well. @param {Sanitize} sanitize */
async function becomesTheSame(sanitize) {
  /** @type {[html: string, clean: string][]} */
  const cases = JSON.parse(ordinary("sanitized.json"));
  const clean = await sanitize(cases.map(([html]) => html));
  return cases.flatMap(([html, expected], at) =>
    clean[at] === expected ? [] : [`${html} became ${clean[at]}, not ${expected}`],
  );
}

/** Checks CDATA sections. A host leaves them out. @param {Page} page */
async function cdataSections(page) {
  const [text, style, elsewhere] = await sanitizers(page).page([
    "<svg><text><![CDATA[a<b & c]]></text></svg>",
    "<svg><style><![CDATA[a{b:c}]]></style><title/>x</svg>",
    "<p><![CDATA[a]]>b</p>",
  ]);
  const facts = [
    [text, "<svg><text>a&lt;b &amp; c</text></svg>"],
    [style, "<style>a{b:c}</style><svg>x</svg>"],
    [elsewhere, "<p>b</p>"],
  ];
  return facts.flatMap(([actual, expected]) => (actual === expected ? [] : [`${actual}, not ${expected}`]));
}

/**
 * Checks that costly HTML costs little. A parser makes far more elements of it than there are in the text, or takes ages. The
 * elements are counted each time that the page has HTML parsed, and once more in the result.
 * @param {Page} page @param {Sanitize} sanitize
 */
async function costsLittle(page, sanitize) {
  const many = (/** @type {number} */ count, /** @type {(at: number) => string} */ make) =>
    Array.from({ length: count }, (_, at) => make(at)).join("");
  const bombs = [
    many(400, (at) => `<div><b id=${at}></div><p>`), // 12 KB: a parser makes 80,000 elements of them
    many(30_000, (at) => `<div><b id=${at}></div><p>x`),
    many(300, (at) => `<table><b id=${at}><tr>x</table><p>x`),
    `<b ${many(200_000, (at) => `a${at} `)}>x`,
    "<div>".repeat(300_000) + "<p>x".repeat(100_000),
    "<li><ul>".repeat(100_000) + "<svg>".repeat(100_000) + "<a>".repeat(100_000),
    `<style>${"(".repeat(500_000)}</style><p style="${"var(".repeat(100_000)}">x`,
    "<![CDATA[><!--<svg><![CDATA[".repeat(50_000),
  ];
  /** @type {string[]} */
  const problems = [];
  for (const bomb of bombs) {
    await page.evaluate(() => {
      const parse = DOMParser.prototype.parseFromString;
      const counter = /** @type {any} */ (globalThis);
      counter.made = 0;
      counter.restore = () => (DOMParser.prototype.parseFromString = parse);
      DOMParser.prototype.parseFromString = function (...given) {
        const document = parse.apply(this, given);
        counter.made += document.getElementsByTagName("*").length;
        return document;
      };
    });
    const [clean] = await sanitize([bomb]);
    const made = await page.evaluate((clean) => {
      new DOMParser().parseFromString(clean, "text/html");
      const { made, restore } = /** @type {any} */ (globalThis);
      restore();
      return made;
    }, clean);
    const tags = bomb.split("<").length - 1;
    const begin = bomb.slice(0, 40);
    if (made > 20 * tags + 10) problems.push(`${begin}: ${made} elements of ${tags} tags`);
    if (clean.length > 4 * bomb.length) problems.push(`${begin}: it became ${clean.length} characters`);
  }
  return problems;
}

/** @param {import("puppeteer-core").Browser} browser */
async function trustedTypes(browser) {
  const headers = {
    "Content-Security-Policy": "require-trusted-types-for 'script'; trusted-types sandglass-display",
  };
  const site = await serve(root, { headers });
  try {
    const page = await browser.newPage();
    await page.goto(`${site.url}/tests/e2e/page.html`);
    return await page.evaluate(async () => {
      /** @type {string[]} */
      const problems = [];
      addEventListener("securitypolicyviolation", (event) =>
        problems.push(`${event.violatedDirective} ${event.sample}`),
      );
      const { displayFrame } = await import(/** @type {any} */ ("/dist/display.js"));
      const frame = displayFrame(
        "<b style='color: red'>7</b><script>1</script><link rel=preconnect href=//canary.test>",
      );
      const loaded = new Promise((resolve) => (frame.onload = resolve));
      document.body.append(frame);
      await loaded;
      if (!frame.srcdoc.endsWith('><b style="color: red">7</b>')) problems.push(frame.srcdoc);
      if (frame.getAttribute("sandbox") !== "" || frame.contentDocument) problems.push("the frame has rights");
      return problems;
    });
  } finally {
    await site.close();
  }
}

// Builds the documentation site and reads it as a visitor does: links lead somewhere, nothing comes from elsewhere, pages can be read.
//   node tests/e2e/site.mjs [--only part]
import { readdir, readFile } from "node:fs/promises";
import { join, posix } from "node:path";
import { parseDocument } from "htmlparser2";
import { mustRun } from "../../scripts/project.mjs";
import { openBrowser, readArguments, root, Score, serve } from "./harness.mjs";

const SITE = join(root, "site");
const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };
/** The pages that are looked at in the browser. @type {[string, keyof typeof SIZES, "light" | "dark"][]} */
const LOOKS = [
  ["index.html", "desktop", "light"],
  ["index.html", "phone", "dark"],
  ["errors.html", "phone", "light"],
  ["server/run.html", "desktop", "dark"],
  ["reference/display.html", "desktop", "light"],
  ["reference/sandglass.html", "phone", "dark"],
];

const { browser, only } = readArguments();
const score = new Score(only);
await mustRun(["node", "scripts/docs/build.mjs"], { log: join(root, ".setup/logs/docs.log") });
const files = new Set((await readdir(SITE, { recursive: true })).map((file) => file.split("\\").join("/")));
const read = (/** @type {string} */ file) => readFile(join(SITE, file), "utf8");

/** The ids, and the addresses that the elements of a page name. @type {Map<string, { ids: Set<string>, links: string[], loads: string[] }>} */
const pages = new Map();
for (const file of files) if (file.endsWith(".html")) pages.set(file, elements(await read(file)));

await score.test("every page of docs/ is in the site, and is listed", async () => {
  const lists = ["quick-start.html", "server/run.html"].flatMap((file) => pages.get(file)?.links ?? []);
  const sidebar = new Set(lists.map((link) => link.split("#")[0]));
  const wanted = (await readdir(join(root, "docs"), { recursive: true }))
    .filter((file) => file.endsWith(".md") && !/(^|\/)README\.md$|^internals\//.test(file))
    .map((file) => file.replace(/\.md$/, ".html"));
  return [
    ...wanted.filter((file) => !pages.has(file)).map((file) => `${file} is missing`),
    ...wanted.filter((file) => !sidebar.has(`/${file}`)).map((file) => `no list links to ${file}`),
    ...(wanted.length < 30 ? [`docs/ has ${wanted.length} pages only`] : []),
  ];
});

await score.test("links lead to pages and to places in them", () => {
  const inside = [...pages].flatMap(([file, { links }]) =>
    links.filter((link) => !/^[a-z]+:/.test(link)).map((link) => ({ file, link })),
  );
  const broken = inside.filter(({ file, link }) => {
    const [path = "", id = ""] = link.split("#");
    const target = path === "" ? file : posix.join("/", posix.dirname(file), path).slice(1);
    const found = path.startsWith("/") ? path.slice(1) : target;
    const name = found === "" || found.endsWith("/") ? `${found}index.html` : found;
    if (!files.has(name)) return true;
    return id !== "" && !pages.get(name)?.ids.has(decodeURIComponent(id));
  });
  if (inside.length < 1000) broken.push({ file: "the site", link: `${inside.length} links only` });
  return [...new Set(broken.map(({ file, link }) => `${file}: ${link}`))];
});

await score.test("pages load nothing from elsewhere", () =>
  [...pages].flatMap(([file, { loads }]) =>
    loads.filter((address) => /^([a-z]+:)?\/\//.test(address)).map((address) => `${file}: ${address}`),
  ),
);

await score.test("each option of a sandbox and each method has its place in the reference", async () => {
  const ids = pages.get("reference/sandglass.html")?.ids ?? new Set();
  const options = [...(await readFile(join(root, "docs/options.md"), "utf8")).matchAll(/^\| (`.*?) \|/gm)].flatMap(
    ([, cell = ""]) => [...cell.matchAll(/`(\w+)/g)].map(([, name = ""]) => name.toLowerCase()),
  );
  return options.filter((name) => !ids.has(`sandboxoptions.${name}`) && !ids.has(name));
});

await score.test("the list for language models leads to texts", async () => {
  const [list, whole] = await Promise.all([read("llms.txt"), read("llms-full.txt")]);
  const paths = [...list.matchAll(/\]\(\/([^)]*)\)/g)].map(([, path = ""]) => path);
  const problems = paths.filter((path) => !files.has(path));
  for (const path of new Set(paths)) {
    if (path.endsWith(".md") && !whole.includes(await read(path))) problems.push(`llms-full.txt lacks ${path}`);
  }
  if (!/^# Sandglass\n\n> \S.*\n/.test(list)) problems.push("it does not begin with a title and a summary");
  return paths.length < 40 ? [...problems, `it has ${paths.length} links only`] : problems;
});

const site = await serve(SITE);
const { browser: opened, close } = await openBrowser(browser);
try {
  const page = await opened.newPage();
  /** @type {string[]} */
  const outside = [];
  /** @type {string[]} */
  const errors = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`${site.url}/`) && !request.url().startsWith("data:")) outside.push(request.url());
  });
  page.on("pageerror", (error) => errors.push(String(error)));

  for (const [path, size, scheme] of LOOKS) {
    await score.test(`${path} on a ${size}, ${scheme}`, async () => {
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
      await page.setViewport(SIZES[size]);
      await page.goto(`${site.url}/${path}`, { waitUntil: "networkidle0" });
      const dark = await page.evaluate(() => document.documentElement.classList.contains("dark"));
      const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      return [
        ...(dark === (scheme === "dark") ? [] : ["it has the other colours"]),
        ...(wider > 0 ? [`it is ${wider} pixels wider than the window`] : []),
        ...(await accessibility(page)),
      ];
    });
  }

  await score.test("the search finds a page by a word in it", async () => {
    await page.setViewport(SIZES.desktop);
    await page.goto(`${site.url}/quick-start.html`, { waitUntil: "networkidle0" });
    await page.click(".VPNavBarSearch button");
    await page.waitForSelector("#localsearch-input");
    // All at once: typed letter by letter, the list shows results of a part of the word in between.
    await page.$eval("#localsearch-input", (input) => {
      /** @type {HTMLInputElement} */ (input).value = "KeyboardInterrupt";
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
    const result = await page.waitForSelector(".VPLocalSearchBox .results a.result");
    await result?.click();
    // The address changes before the page does.
    await page.waitForFunction(
      () =>
        !location.pathname.endsWith("/quick-start.html") &&
        document.querySelector("main")?.textContent.includes("KeyboardInterrupt"),
    );
    return [];
  });

  await score.test("no request leaves the site, and no script fails", () => [...outside, ...errors]);
} catch (error) {
  score.fail("the site can be visited", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await Promise.allSettled([close(), site.close()]);
  score.end();
}

/** The violations that axe finds. A shortcut that the search's button shows is no part of its name. @param {import("puppeteer-core").Page} page @returns {Promise<string[]>} */
async function accessibility(page) {
  await page.addScriptTag({ path: join(root, "node_modules/axe-core/axe.min.js") });
  return page.evaluate(async () => {
    const { violations } = await /** @type {any} */ (globalThis).axe.run(document, {
      rules: { "label-content-name-mismatch": { enabled: false } },
    });
    return violations.flatMap((/** @type {any} */ { id, nodes }) =>
      nodes.slice(0, 3).map((/** @type {any} */ { target, failureSummary }) => `${id}: ${target} ${failureSummary}`),
    );
  });
}

/** @param {string} html */
function elements(html) {
  /** @type {Set<string>} */
  const ids = new Set();
  /** @type {string[]} */
  const links = [];
  /** @type {string[]} */
  const loads = [];
  const visit = (/** @type {any} */ node) => {
    const { id, href, src } = node.attribs ?? {};
    if (id) ids.add(id);
    if (href && node.name === "a") links.push(href);
    if (href && node.name === "link") loads.push(href);
    if (src) loads.push(src);
    for (const child of node.children ?? []) visit(child);
  };
  visit(parseDocument(html));
  return { ids, links, loads };
}

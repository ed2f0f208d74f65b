// Runs the first sample of each page of docs/ as a reader would, and compares what it prints with the comments behind `→`.
//   node tests/e2e/docs.mjs [--browser chromium|firefox] [--only part-of-a-path]
// JavaScript runs in the browser (`js`) or in Node.js (`mjs`), a shell's commands against a real server, Python in the project's Python. Rust is run by
// `cargo test --doc`. Addresses that stand for the reader's own lead to servers of this test.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { openBrowser, readArguments, root, Score } from "./harness.mjs";
import { KEY, startHost } from "./host.mjs";
import { startModelServer } from "./rlm-server.mjs";
import {
  differences,
  firstSample,
  promised,
  runInNode,
  runInPage,
  runInPython,
  runInShell,
  runInWorker,
  runWithPage,
} from "./samples.mjs";
import { realWheels, serveFiles } from "./wheels.mjs";

/** The crate whose documentation tests run Rust samples of documents. */
const DOCTESTS = "host/src/lib.rs";
/** Samples that are a file of an example, whose own test runs it. */
const OF_EXAMPLES = { "recipes/react.md": "examples/react/src/use-sandbox.js" };
/** The sample that pages run which say nothing about their script. */
const APP = "quick-start.md";
/** Pages that are lists of other pages, or records for developers. */
const WITHOUT_SAMPLE = /^(README\.md|internals\/.*)$/;

const { browser, only } = readArguments();
const score = new Score(only);
const pages = (await readdir(join(root, "docs"), { recursive: true }))
  .filter((path) => path.endsWith(".md") && !WITHOUT_SAMPLE.test(path))
  .sort();

/** @type {Record<string, (asked: import("./rlm-server.mjs").Asked) => import("./rlm-server.mjs").Reply>} */
const MODELS = {
  // Looks for the rain, then answers.
  large: ({ turn }) =>
    turn === 1
      ? "I look for the word.\n```repl\nhits = search_context('rain', window=0)\nprint(len(hits))\n```"
      : "```repl\nFINAL(llm_query('Which letter complains? ' + context[:100]))\n```",
  small: () => "the first letter",
  // Runs code in which tools are called, and then says what it printed.
  agent: ({ messages, last }) => {
    const code = "print(max(context, key=lambda city: tools.weather(city)['degrees']))";
    if (messages.at(-1)?.role !== "tool") return { tool: "python", input: { code } };
    return `It is ${last.replace("Output:", "").trim()}.`;
  },
};

const { frameHash } = await import("../../dist/assets.js");

/** The sample that a page begins with. @param {string} path */
async function sampleOf(path) {
  const sample = firstSample(await readFile(join(root, "docs", path), "utf8"));
  if (!sample) throw new Error("it does not begin with a sample");
  return sample;
}

/** What ends when the test does. @type {(() => Promise<unknown>)[]} */
const ends = [];
try {
  const models = await startModelServer(MODELS);
  ends.push(models.close);
  const { files, packages } = await realWheels();
  const wheels = await serveFiles(new Map([...files, ["pyodide-lock.json", JSON.stringify({ info: {}, packages })]]));
  ends.push(wheels.close);
  const { site, page: openPage, close } = await openBrowser(browser);
  ends.push(close);
  const [withKeys, withoutKeys] = await Promise.all(
    [undefined, ""].map(async (keys) => {
      const host = await startHost({ backend: "auto", origin: site.url, keys });
      ends.push(() => host.stop());
      return host;
    }),
  );
  const page = await openPage();

  /** The sample with the addresses of this test's servers. @param {string} source */
  const here = (source) =>
    source
      .replaceAll("https://api.example.com", models.url)
      .replaceAll("https://python.example.com", withKeys.url)
      .replaceAll("https://wheels.example.com/", wheels.url)
      .replaceAll("YOUR_KEY", KEY);

  /** @type {Record<string, (source: string) => Promise<string[]>>} */
  const RUN = {
    js: (source) => runInPage(page, here(source)),
    "js worker": (source) => runInWorker(page, here(source)),
    html: async (source) => {
      const other = await openPage();
      return runWithPage(other, here(source).replace("sha256-FRAME_HASH", frameHash), (await sampleOf(APP)).source);
    },
    sh: (source) => runInShell(here(source), { server: withoutKeys.url }),
    python: (source) => runInPython(here(source)),
    mjs: (source) => runInNode(here(source)),
  };

  const crate = await readFile(join(root, DOCTESTS), "utf8");
  for (const path of pages) {
    await score.test(path, async () => {
      const { language, source } = await sampleOf(path);
      const example = OF_EXAMPLES[/** @type {keyof typeof OF_EXAMPLES} */ (path)];
      if (example) return (await readFile(join(root, example), "utf8")) === source ? [] : [`it is not ${example}`];
      if (language === "rust") return crate.includes(`docs/${path}"`) ? [] : [`${DOCTESTS} does not include it`];
      const run = RUN[language];
      if (!run) return [`its first sample is ${language}, which nobody runs`];
      const expected = language === "html" ? (await sampleOf(APP)).source : source;
      return differences(await run(source), promised(expected));
    });
  }
} catch (error) {
  score.fail("the samples could not be run", [String(/** @type {Error} */ (error).stack ?? error)]);
} finally {
  await Promise.allSettled(ends.map((end) => end()));
  score.end();
}

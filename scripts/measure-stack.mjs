// Measures the use of the shadow stack at the moment when the engine's own stack ends. WORKER_STACK and JSPI_STACK of
// pyodide-glue/runtime.js must stay below it. Run this after `npm run build`, and again for another Pyodide or browser.
//   node scripts/measure-stack.mjs [--browser chromium|firefox] [--only repr,key]
import { parseArgs } from "node:util";
import { launch } from "./browsers.mjs";
import { root } from "./project.mjs";
import { serve } from "./serve.mjs";

/** Recursions that only the end of a stack stops. @type {Record<string, string>} */
const RECURSIONS = {
  repr: "x = []\nfor _ in range(100_000): x = [x]\nrepr(x)",
  comparison: "a = []; a.append(a); b = []; b.append(b)\na == b",
  hash: "x = ()\nfor _ in range(100_000): x = (x,)\nhash(x)",
  json: "import json\njson.loads('[' * 100_000)",
  pickle: "import pickle\nx = []\nfor _ in range(100_000): x = [x]\npickle.dumps(x)",
  isinstance: "x = int\nfor _ in range(100_000): x = (x,)\nisinstance('', x)",
  sum: "eval('+'.join(['1'] * 200_000))",
  partial:
    "from functools import partial\ndef f(values):\n for value in values: partial(f)(value)\na = []; a.append(a)\nf(a)",
  cache: "from functools import lru_cache\n@lru_cache(None)\ndef f(n): return f(n + 1)\nf(1)",
  key: "def f(x): return max([1], key=f)\nf(1)",
  sorted: "def f(x): return sorted([1, 2], key=f)\nf(1)",
  substitution: "import re\ndef f(match): return re.sub('a', f, 'a')\nf(1)",
  generators: "def g():\n yield from g()\nnext(g())",
  getattr: "class A:\n def __getattr__(self, name): return getattr(self, name)\nA().x",
  setattr: "class A:\n def __setattr__(self, name, value): setattr(self, name, value)\nA().x = 1",
  bool: "class A:\n def __bool__(self): return bool(self)\nbool(A())",
  index: "import operator\nclass A:\n def __index__(self): return operator.index(self)\noperator.index(A())",
  format: "class A:\n def __format__(self, spec): return f'{self}'\nf'{A()}'",
  iterator: "class A:\n def __iter__(self): return iter(self)\nlist(A())",
};

/** Source of a worker that loads Pyodide without our bounds, and reports the bytes in use when the engine gave up. */
const WORKER = `
import { loadPyodide } from "ORIGIN/node_modules/pyodide/pyodide.mjs";
self.onmessage = async ({ data: { code, promising } }) => {
  const { fetch } = self;
  self.fetch = (url, ...rest) => fetch(String(url).replace(/.*pyodide\\.asm\\.wasm$/, "ORIGIN/dist/pyodide.asm.wasm"), ...rest);
  const pyodide = await loadPyodide({ indexURL: "ORIGIN/node_modules/pyodide/" });
  const module = pyodide._module;
  const run = pyodide.runPython("import sys\\nsys.setrecursionlimit(1_000_000)\\ndef run(code): exec(code, {})\\nrun");
  let used = 0; // 0: Python raised an exception first
  try {
    await (promising ? run.callPromising(code) : run(code));
  } catch (error) {
    if (error.pyodide_fatal_error) used = module._emscripten_stack_get_base() - module.stackSave();
  }
  self.postMessage(used);
};`;

const { values } = parseArgs({
  options: { browser: { type: "string", default: "chromium" }, only: { type: "string" } },
});
const only = values.only?.split(",");
const site = await serve(root);
const browser = await launch(/** @type {"chromium" | "firefox"} */ (values.browser));
const page = await browser.newPage();
await page.goto(`${site.url}/tests/e2e/page.html`);
console.log(`kB of the shadow stack in use when the engine's stack ended, in ${values.browser}`);
console.log(`${"".padEnd(14)} worker   JSPI`);
const least = [Infinity, Infinity];
for (const [name, code] of Object.entries(RECURSIONS)) {
  if (only && !only.includes(name)) continue;
  const used = [];
  for (const promising of [false, true]) used.push(await measure(code, promising));
  for (const [kind, bytes] of used.entries()) if (bytes) least[kind] = Math.min(least[kind], bytes);
  console.log(row(name, used));
}
console.log(row("least", least));
await browser.close();
await site.close();

/** @param {string} code @param {boolean} promising @returns {Promise<number>} */
function measure(code, promising) {
  return page.evaluate(
    (source, data) =>
      new Promise((resolve, reject) => {
        const url = URL.createObjectURL(
          new Blob([source.replaceAll("ORIGIN", location.origin)], { type: "text/javascript" }),
        );
        const worker = new Worker(url, { type: "module" });
        worker.onmessage = ({ data }) => {
          worker.terminate();
          resolve(data);
        };
        worker.onerror = ({ message }) => reject(new Error(message));
        worker.postMessage(data);
      }),
    WORKER,
    { code, promising },
  );
}

/** @param {string} name @param {number[]} used */
function row(name, used) {
  return `${name.padEnd(14)} ${used.map((bytes) => (bytes ? String(Math.round(bytes / 1000)) : "–").padStart(6)).join(" ")}`;
}

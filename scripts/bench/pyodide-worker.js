// The rival: Pyodide in a module worker, as its documentation shows. Also answers an empty message.

import { loadPyodide } from "../../node_modules/pyodide/pyodide.mjs";

/** @type {any} */
let pyodide;
/** @type {any} The least that could answer a cell: no output, no limits, no timeout, no way to wait. */
let evaluate;

/** @type {Record<string, (value: any) => unknown>} */
const tasks = {
  echo: () => null,
  boot: async (indexURL) => {
    pyodide = await loadPyodide({ indexURL });
    return pyodide.runPython("1+1");
  },
  run: (code) => pyodide.runPythonAsync(code),
  eval: (code) => (evaluate ??= pyodide.runPython("lambda code: repr(eval(code))"))(code),
  set: (value) => pyodide.globals.set("context", value),
  get: () => pyodide.globals.get("context"),
};

self.onmessage = async ({ data: [task, value] }) => self.postMessage(await tasks[task](value));

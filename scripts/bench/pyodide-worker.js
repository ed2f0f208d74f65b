// The rival: Pyodide in a module worker, as its documentation shows it, and an echo.

import { loadPyodide } from "../../node_modules/pyodide/pyodide.mjs";

/** @type {any} */
let pyodide;

/** @type {Record<string, (value: any) => unknown>} */
const tasks = {
  echo: () => null,
  boot: async (indexURL) => {
    pyodide = await loadPyodide({ indexURL });
    return pyodide.runPython("1+1");
  },
  run: (code) => pyodide.runPythonAsync(code),
  set: (value) => pyodide.globals.set("context", value),
  get: () => pyodide.globals.get("context"),
};

self.onmessage = async ({ data: [task, value] }) => self.postMessage(await tasks[task](value));

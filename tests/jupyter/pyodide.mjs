// `JupyterREPL` as in JupyterLite: with IPython in Pyodide, which has no threads, and whose event loop always runs.
//   node tests/jupyter/pyodide.mjs
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { loadPyodide } from "pyodide";
import { root } from "../../scripts/project.mjs";

const lib = join(root, ".setup/jupyter/7/lib");
const [python] = readdirSync(lib);
const pyodide = await loadPyodide();
for (const [path, folder] of [
  ["/package", join(root, "pyodide-glue/python")],
  ["/site", join(lib, python, "site-packages")], // IPython is pure Python, so any Python's copy will do
]) {
  pyodide.FS.mkdirTree(path);
  pyodide.FS.mount(pyodide.FS.filesystems.NODEFS, { root: folder }, path);
}
const failed = await pyodide.runPythonAsync(`
import sys
sys.path += ["/package", "/site"]
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

config = Config()
config.HistoryManager.enabled = False
shell = InteractiveShell.instance(config=config)
cells = [
    "from sandglass import JupyterREPL",
    "import asyncio, sys; before = sys.stdout, asyncio.get_running_loop()",
    "repl = JupyterREPL(lambda prompt, model=None: prompt.upper(), sync_from_user_ns=True, sync_to_user_ns=True)",
    "repl.load_context('x' * 10_000_000); rows = [3, 1]",
    "r = repl.execute_code('rows.sort(); n = len(context); print(llm_query(chr(97)), llm_query_batched([chr(98), chr(99)]))')",
    "assert r.error is None and r.stdout == \\"A ['B', 'C']\\\\n\\" and n == 10_000_000 and rows == [1, 3], (r, r.traceback)",
    "r = repl.execute_code('import asyncio\\\\nasync def f(x):\\\\n  await asyncio.sleep(0.01); return await llm_query(x)\\\\nprint(await asyncio.gather(f(chr(97)), f(chr(98))))')",
    "assert r.stdout == \\"['A', 'B']\\\\n\\", (r, r.traceback)",
    "r = repl.execute_code('print(1); 1 / 0'); assert (r.stdout, r.error_type) == ('1\\\\n', 'ZeroDivisionError')",
    "repl.cleanup(); assert before == (sys.stdout, asyncio.get_running_loop())",
    "await asyncio.sleep(0)",
]
failed = None
for cell in cells:
    result = await shell.run_cell_async(cell, transformed_cell=shell.transform_cell(cell))
    if not result.success:
        failed = f"{cell}: {result.error_before_exec or result.error_in_exec!r}"
        break
failed
`);
if (failed) console.log(failed);
console.log(failed ? "0 passed, 1 failed, 0 skipped" : "1 passed, 0 failed, 0 skipped");
process.exitCode = failed ? 1 : 0;

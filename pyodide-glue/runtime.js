// Loads Pyodide from bytes, without a network, and the Python runtime into it.

import { loadPyodide } from "pyodide";
import createPyodideModule from "pyodide/pyodide.asm.mjs";
import { info as lock } from "pyodide/pyodide-lock.json";

/** @import { Encoding, GuestInfo } from "../pkg/sandglass.js" */
/** @import { createBridge } from "./bridge.js" */

/** The protocol's version; src/protocol.rs refuses another. */
const PROTOCOL_VERSION = 1;

// Pyodide builds absolute addresses of its files from this. Nothing is ever fetched from there.
const ASSETS = "https://guest.invalid/";

/**
 * @param {Record<string, Blob>} assets
 * @param {[string, string][]} files
 * @param {ReturnType<typeof createBridge>} bridge
 */
export async function loadRuntime(assets, files, bridge) {
  // The only `fetch` there will be: it knows the assets and nothing else.
  self.fetch = async (request) => {
    const name = String(request instanceof Request ? request.url : request).replace(ASSETS, "");
    const file = assets[name];
    if (!file) throw new TypeError(`the guest has no ${name}`);
    const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
    return new Response(file, { headers: { "content-type": type } });
  };
  const pyodide = await loadPyodide({
    indexURL: ASSETS,
    createPyodideModule,
    lockFileContents: JSON.stringify({ info: lock, packages: {} }),
    stdLibURL: `${ASSETS}python_stdlib.zip`,
    env: { HOME: "/home/pyodide", MPLBACKEND: "agg" },
  });

  const [major, minor] = lock.python.split(".");
  const home = `/lib/python${major}.${minor}/site-packages/sandglass`;
  pyodide.FS.mkdirTree(home);
  for (const [name, source] of files) pyodide.FS.writeFile(`${home}/${name}`, source);

  const guest = pyodide.pyimport("sandglass.browser").boot(bridge.python);
  pyodide.setInterruptBuffer(/** @type {any} */ (bridge.interruptBuffer));
  for (const [stream, fd] of /** @type {const} */ ([
    ["setStdout", 1],
    ["setStderr", 2],
  ])) {
    pyodide[stream]({ write: (bytes) => bridge.write(fd, bytes), isatty: false });
  }

  // A call into C that failed may have left without the interpreter's lock.
  const takeLock = /** @type {any} */ (pyodide)._module._PyGILState_Ensure;
  return {
    python: createCalls(guest, takeLock, bridge.python.canBlock),
    info: {
      version: PROTOCOL_VERSION,
      guest: /** @type {Pick<GuestInfo, "python" | "pyodide">} */ ({ python: lock.python, pyodide: pyodide.version }),
    },
  };
}

/** @typedef {[encoding: Encoding, body: Uint8Array] | ["refused", why: string]} Answer */

/**
 * The runtime's methods as functions that may wait. What they throw is fatal.
 * @param {any} guest  `sandglass.browser.Guest`
 * @param {() => void} takeLock
 * @param {boolean} canBlock  whether Python waits by blocking; if not, it is suspended, for which it needs `callPromising`
 */
function createCalls(guest, takeLock, canBlock) {
  /** @param {any} method @returns {(...args: unknown[]) => Promise<any>} */
  const waiting = (method) =>
    canBlock ? async (...args) => method(...args) : (...args) => method.callPromising(...args);
  const { configure, prepare, execute, get_variable, take_text, set_variable, list_variables, flush } = guest;
  const runCell = waiting(execute);
  return {
    /** @type {(config: string) => Answer} */
    configure: (config) => configure(config),
    /** @type {(execution: number, code: string) => Promise<string | [report: string, encoding: Encoding, final: Uint8Array]>} */
    execute: (execution, code) => {
      // Not on the stack of its own that `callPromising` makes: Python's compiler is several times slower there.
      if (!canBlock) prepare(execution, code);
      return runCell(execution, code);
    },
    /** @type {(name: string) => Promise<Answer>} */
    getVariable: waiting(get_variable),
    /** The pieces of a text, of which `setVariable` brings the last. @type {(piece: Uint8Array) => void} */
    takeText: (piece) => take_text(piece),
    /** @type {(name: string, encoding: Encoding, body: Uint8Array) => Promise<Answer>} */
    setVariable: waiting(set_variable),
    /** @type {() => Promise<Answer>} */
    listVariables: waiting(list_variables),
    /** The last words of an interpreter that has failed: it can often still say what was printed. */
    flush: () => {
      takeLock();
      flush();
    },
  };
}

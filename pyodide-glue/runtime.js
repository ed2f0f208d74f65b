// Loads Pyodide from bytes, without a network, and the Python runtime into it.

import { loadPyodide } from "pyodide";
import createPyodideModule from "pyodide/pyodide.asm.mjs";
import { info as lock } from "pyodide/pyodide-lock.json";
import { createCheckpoints, hashPages } from "./checkpoint.js";

/** @import { Encoding, GuestInfo } from "../pkg/sandglass.js" */
/** @import { createBridge } from "./bridge.js" */

/** The protocol's version; src/protocol.rs refuses another. */
const PROTOCOL_VERSION = 1;

// Pyodide builds absolute addresses of its files from this. Nothing is ever fetched from there.
const ASSETS = "https://guest.invalid/";
const WASM = "pyodide.asm.wasm";
const PAGE = 65536;
/** 32-bit numbers in the hash of a page. */
const HASH_WORDS = 4;

/**
 * Starts Python and its runtime.
 * @param {Record<string, Blob>} assets
 * @param {[string, string][]} files
 * @param {ReturnType<typeof createBridge>} bridge
 * @param {Blob | undefined} snapshot  what an earlier guest of the same files made; without it, one is made
 */
export async function loadRuntime(assets, files, bridge, snapshot) {
  const T = [performance.now()];
  const wasm = new Response(assets[WASM], { headers: { "content-type": "application/wasm" } });
  const compiling = WebAssembly.compileStreaming(wasm);
  // The only `fetch` there will be: it knows the assets and nothing else.
  self.fetch = async (request) => {
    const name = String(request instanceof Request ? request.url : request).replace(ASSETS, "");
    const file = assets[name];
    if (!file) throw new TypeError(`the guest has no ${name}`);
    return new Response(name === WASM ? null : file); // it is being compiled already
  };
  const found = snapshot && (await snapshot.arrayBuffer());
  T.push(performance.now());
  const module = await compiling;
  T.push(performance.now());
  const made = found ? undefined : await makeSnapshot(module, files);
  const whole = snapshot ?? new Blob(made);
  const image = readImage(found ?? (await whole.arrayBuffer()));
  T.push(performance.now());
  const { pyodide, grow } = await load(module, files, { _loadSnapshot: image.pyodide });
  T.push(performance.now());

  const python = pyodide.pyimport("sandglass.browser");
  python.connect(bridge.python);
  pyodide.setInterruptBuffer(/** @type {any} */ (bridge.interruptBuffer));
  for (const [stream, fd] of /** @type {const} */ ([
    ["setStdout", 1],
    ["setStderr", 2],
  ])) {
    pyodide[stream]({ write: (bytes) => bridge.write(fd, bytes), isatty: false });
  }
  T.push(performance.now());

  // A call into C that failed may have left without the interpreter's lock.
  const takeLock = /** @type {any} */ (pyodide)._module._PyGILState_Ensure;
  return {
    python: createCalls(python.CALLS, takeLock, bridge.python.canBlock),
    checkpoints: createCheckpoints({
      module: /** @type {any} */ (pyodide)._module,
      original: image.hashes,
      image: whole.slice(image.heapStart, image.heapEnd),
      roles: [bridge.python, ...Object.values(bridge.python).filter((value) => typeof value === "function")],
      grow,
    }),
    snapshot: made && whole,
    info: {
      version: PROTOCOL_VERSION,
      guest: /** @type {Pick<GuestInfo, "python" | "pyodide">} */ ({ python: lock.python, pyodide: pyodide.version }),
    },
  };
}

/**
 * The memory of a Python that has imported the runtime and much of the standard library. No reference to a JavaScript
 * object is in it yet.
 * @param {WebAssembly.Module} module
 * @param {[string, string][]} files
 */
async function makeSnapshot(module, files) {
  const { pyodide } = await load(module, files, { _makeSnapshot: true });
  pyodide.runPython("import sandglass.preload, sandglass.browser; del sandglass");
  const image = /** @type {Uint8Array<ArrayBuffer>} */ (pyodide.makeMemorySnapshot());
  const words = new Int32Array(image.buffer, heapStart(image.buffer));
  const hashes = new Int32Array((words.byteLength / PAGE) * HASH_WORDS);
  hashPages(words, hashes, 0, words.byteLength / PAGE);
  return [image, hashes];
}

/** Where Python's memory begins in what `makeMemorySnapshot` returns. @param {ArrayBuffer} image */
const heapStart = (image) => new Uint32Array(image, 0, 2)[1];

/** The parts of a snapshot: what Pyodide made, then the hashes of its pages. @param {ArrayBuffer} whole */
function readImage(whole) {
  const start = heapStart(whole);
  const heap = ((whole.byteLength - start) / (PAGE + 4 * HASH_WORDS)) * PAGE;
  const end = start + heap;
  return {
    pyodide: new Uint8Array(whole, 0, end),
    heapStart: start,
    heapEnd: end,
    hashes: new Int32Array(whole.slice(end)),
  };
}

/**
 * Loads Pyodide.
 * @param {WebAssembly.Module} module
 * @param {[string, string][]} files
 * @param {{ _makeSnapshot?: boolean, _loadSnapshot?: Uint8Array }} options
 */
async function load(module, files, options) {
  const { instantiateStreaming } = WebAssembly;
  /** @type {(bytes: number) => void} */
  let grow = () => {};
  WebAssembly.instantiateStreaming = /** @type {any} */ (
    async (/** @type {unknown} */ _response, /** @type {WebAssembly.Imports} */ imports) => {
      const instance = await WebAssembly.instantiate(module, imports);
      const memory = /** @type {WebAssembly.Memory} */ (instance.exports.memory);
      grow = /** @type {any} */ (imports.env).emscripten_resize_heap;
      const missing = (options._loadSnapshot?.length ?? 0) - memory.buffer.byteLength;
      if (missing > 0) memory.grow(Math.ceil(missing / 65536));
      return { instance, module };
    }
  );
  try {
    const [major, minor] = lock.python.split(".");
    const home = `/lib/python${major}.${minor}/site-packages/sandglass`;
    const pyodide = await loadPyodide({
      indexURL: ASSETS,
      createPyodideModule,
      lockFileContents: JSON.stringify({ info: lock, packages: {} }),
      stdLibURL: `${ASSETS}python_stdlib.zip`,
      env: { HOME: "/home/pyodide", MPLBACKEND: "agg" },
      fsInit: async (fs) => {
        fs.mkdirTree(home);
        for (const [name, source] of files) fs.writeFile(`${home}/${name}`, source);
      },
      ...options,
    });
    return { pyodide, grow };
  } finally {
    WebAssembly.instantiateStreaming = instantiateStreaming;
  }
}

/** @typedef {[encoding: Encoding, body: Uint8Array] | ["refused", why: string]} Answer */

/**
 * The runtime's methods as functions that may wait. What they throw is fatal.
 * @param {any} calls  `sandglass.browser.CALLS`
 * @param {() => void} takeLock
 * @param {boolean} canBlock  whether Python waits by blocking; if not, it is suspended, for which it needs `callPromising`
 */
function createCalls(calls, takeLock, canBlock) {
  /** @param {any} method @returns {(...args: unknown[]) => Promise<any>} */
  const waiting = (method) =>
    canBlock ? async (...args) => method(...args) : (...args) => method.callPromising(...args);
  const [configure, prepare, execute, getVariable, takeText, setVariable, listVariables, flush] = calls;
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
    getVariable: waiting(getVariable),
    /** The pieces of a text, of which `setVariable` brings the last. @type {(piece: Uint8Array) => void} */
    takeText: (piece) => takeText(piece),
    /** @type {(name: string, encoding: Encoding, body: Uint8Array) => Promise<Answer>} */
    setVariable: waiting(setVariable),
    /** @type {() => Promise<Answer>} */
    listVariables: waiting(listVariables),
    /** The last words of an interpreter that has failed: it can often still say what was printed. */
    flush: () => {
      takeLock();
      flush();
    },
  };
}

// Loads Pyodide from bytes, without a network, and the Python runtime into it.
// Decisions: docs/internals/guest-in-a-browser.md.

import { loadPyodide } from "pyodide";
import createPyodideModule from "pyodide/pyodide.asm.mjs";
import { info as lock } from "pyodide/pyodide-lock.json";
import { createCheckpoints } from "./checkpoint.js";
import { createFiles } from "./files.js";
import { installWheels } from "./install.js";
import { createLibraries } from "./libraries.js";
import { fileNames } from "./file-names.js";
import {
  cleanFreeMemory,
  copySnapshot,
  createHash,
  isIntact,
  makeSnapshot,
  readPages,
  readSnapshot,
  unpackSnapshot,
} from "./snapshot.js";

/** @import { Encoding, GuestInfo, LostVariable, SurveyedVariable, WheelFile } from "../pkg/sandglass.js" */
/** @import { createBridge } from "./bridge.js" */
/** @import { createDetector } from "./nondeterminism.js" */
/** @import { createLibrary } from "./library.js" */
/** @import { Hash, Image } from "./snapshot.js" */
/** @import { Parts } from "./start-worker.js" */

// The base of Pyodide's absolute addresses. Nothing is fetched from there.
const ASSETS = "https://guest.invalid/";
const SITE = `/lib/python${lock.python.split(".", 2).join(".")}/site-packages`;
const WASM = "pyodide.asm.wasm";
const STDLIB = "python_stdlib.zip";
const LIBRARY = `/lib/python${lock.python.split(".", 2).join("")}.zip`;
// Taken before any guest code runs: it may replace it.
const { parse, stringify } = JSON;
const { imul } = Math;
const { grow: growMemory } = WebAssembly.Memory.prototype;
const { timeOrigin } = performance;
const now = performance.now.bind(performance);
/** The step in bytes by which wasm memory grows. */
const WASM_PAGE = 65536;
/**
 * The bytes of the shadow stack after which Python raises RecursionError: on the worker's own stack, and on the stacks
 * that JSPI makes for `callPromising`. scripts/stack.mjs makes the engine's stack grow in proportion, and
 * scripts/measure-stack.mjs prints where the engine's stack ends. The rest is for the glue.
 */
const WORKER_STACK = 400_000;
const JSPI_STACK = 760_000;
/** The bytes at the end of the shadow stack that Python leaves. The least size of a stack, too. */
const STACK_MARGIN = 65_536;
/** The longest time for saving the state by value, in milliseconds. */
const STATE_MS = 2000;
/** Emscripten's numbers of an error, and of the devices /dev/tty and /dev/tty1. */
const ENXIO = 60;
const TERMINALS = [5, 6];
/** The sizes of the blocks that `probe` asks for, in bytes. */
const PROBED = [16, 32, 48, 64, 96, 128, 256, 512];
/** The time in a snapshot, in milliseconds since 1970: the first day of 2026. */
const SNAPSHOT_TIME = 1_767_225_600_000;
const DAMAGED = "the snapshot that was kept is damaged";

/**
 * Starts Python and its runtime: from the snapshot of an earlier guest of the page, else from that of the package, which is
 * packed. Without either, makes one.
 * @param {Blob | undefined} given  the snapshot of an earlier guest
 * @param {Promise<Parts>} parts
 * @param {Promise<WebAssembly.Module>} wasm
 * @param {ReturnType<typeof createBridge>} bridge
 * @param {ReturnType<typeof createDetector>} detector
 * @param {ReturnType<typeof createLibrary>} library
 */
export async function loadRuntime(given, parts, wasm, bridge, detector, library) {
  // Python's clocks must not jump in a guest that takes over, so no worker may have a time origin of its own.
  performance.now = () => timeOrigin + now();
  // The only `fetch` in the guest.
  self.fetch = async (request) => {
    const name = String(request instanceof Request ? request.url : request).replace(ASSETS, "");
    if (name === STDLIB) return new Response(library.archive ?? null);
    if (name === WASM) return new Response(null); // already compiled
    throw new TypeError(`the guest has no ${name}`);
  };

  if (bridge.capabilities.bridge === "none") await library.load(); // Python could never wait for it
  let snapshot = given;
  const reading = given?.arrayBuffer();
  let started = reading && (await load(wasm, detector, parts, async () => readSnapshot(await reading)));
  const { packed } = await parts;
  if (!started && packed) {
    const unpack = async (/** @type {Promise<WebAssembly.Memory>} */ memory) => {
      const whole = await unpackSnapshot(packed, memory);
      snapshot = new Blob([whole]);
      return readSnapshot(whole);
    };
    started = await load(wasm, detector, parts, unpack);
  }
  if (!snapshot || !started) {
    if (!library.isThere) await library.load();
    const goOn = standStill();
    const { pyodide, hash, fixSize } = /** @type {Loaded} */ (await load(wasm, detector, parts));
    const imported = "sandglass.browser.preload, sandglass.browser.guest";
    pyodide.runPython(`import ${imported}; del sandglass; import gc; gc.collect(); del gc`);
    cleanFreeMemory(pyodide, fixSize);
    snapshot = makeSnapshot(pyodide, hash);
    goOn();
    const made = await snapshot.arrayBuffer();
    started = /** @type {Loaded} */ (await load(wasm, detector, parts, async () => readSnapshot(made), true));
  }
  const { pyodide, image, hash, grow, limitMemory, fixSize, libraries, setTimeZone, hearSuspensions, fatal } = started;
  setTimeZone();
  hearSuspensions(bridge.suspended);

  const python = pyodide.pyimport("sandglass.browser.guest");
  python.connect(bridge.python);
  pyodide.setInterruptBuffer(/** @type {any} */ (bridge.interruptBuffer));
  for (const [stream, fd] of /** @type {const} */ ([
    ["setStdout", 1],
    ["setStderr", 2],
  ])) {
    pyodide[stream]({ write: (bytes) => bridge.write(fd, bytes), isatty: false });
  }

  const module = /** @type {any} */ (pyodide)._module;
  bridge.notice(module, "handle_js_error"); // makes an error of JavaScript one of Python, which may look for signals
  leaveTerminals(module.FS);
  library.stand(module.FS, LIBRARY);
  const files = createFiles(module);
  libraries.begin();
  const calls = createCalls(python.CALLS, module, bridge);
  const roles = [bridge.python, ...Object.values(bridge.python).filter((value) => typeof value === "function")];
  const checkpoints = createCheckpoints({
    module,
    hash,
    snapshot: image.name,
    original: image.hashes,
    readOriginal: (pages) => readPages(/** @type {Blob} */ (snapshot), image.hashes, pages),
    roles,
    detector,
    grow,
    fixSize,
    files,
    libraries,
    python: calls,
  });
  detector.ready(roles, module.FS);
  return {
    python: calls,
    limitMemory,
    fatal,
    files,
    libraries,
    checkpoints,
    packages: {
      /** @param {WheelFile[]} wheels @param {Blob[]} blobs @param {number} maxBytes */
      async install(wheels, blobs, maxBytes) {
        const paths = await files.exempt(() => installWheels(module.FS, SITE, wheels, blobs, maxBytes));
        checkpoints.expect(paths);
        libraries.expect(paths);
        calls.forgetFolders();
      },
    },
    made: snapshot === given ? undefined : { snapshot, reason: given && DAMAGED },
    info: {
      version: python.VERSION,
      guest: /** @type {Pick<GuestInfo, "python" | "pyodide">} */ ({ python: lock.python, pyodide: pyodide.version }),
    },
  };
}

/**
 * @typedef {object} Loaded
 * @property {import("pyodide").PyodideAPI} pyodide
 * @property {Image} image
 * @property {Hash} hash  of its memory
 * @property {(bytes: number) => void} grow  makes the memory at least so large
 * @property {(bytes: number) => void} limitMemory
 * @property {(fixed: boolean) => void} fixSize  keeps the memory from growing
 * @property {ReturnType<typeof createLibraries>} libraries
 * @property {() => void} setTimeZone  has the C library ask for the time zone again
 * @property {(hear: (on: boolean) => void) => void} hearSuspensions  tells a function when Python is suspended, and when it goes on
 * @property {() => unknown} fatal  the error that ended Python, if one did
 */

/**
 * Loads Pyodide from a snapshot, or ready to make one. Resolves to undefined when the snapshot is damaged.
 * @param {Promise<WebAssembly.Module>} wasm
 * @param {ReturnType<typeof createDetector>} detector
 * @param {Promise<Parts>} parts
 * @param {(memory: Promise<WebAssembly.Memory>) => Promise<Image | undefined>} [read]  gets the fresh memory
 * @param {boolean} [proven]  whether a guest has started from this snapshot before; the parts say it otherwise
 * @returns {Promise<Loaded | undefined>}
 */
async function load(wasm, detector, parts, read, proven) {
  const { instantiateStreaming } = WebAssembly;
  /** @type {Image | undefined} */
  let image;
  /** @type {Loaded["grow"]} */
  let grow = () => {};
  /** @type {Loaded["hash"]} */
  let hash = () => 0;
  let setTimeZone = () => {};
  /** @type {(on: boolean) => void} */
  let suspended = () => {};
  /** The stack pointer of each suspended Python, by its state. @type {Map<unknown, number>} */
  const depths = new Map();
  /** @type {ReturnType<typeof boundStack>} */
  let bound = () => {};
  /** The error that ended Python, if any. Those after it only follow from it. @type {unknown} */
  let fatal;
  const libraries = createLibraries();
  let limit = Infinity;
  let fixed = false;
  /** @type {Parts["files"]} */
  let files = [];
  /** The size of the memory before it grows for the snapshot. */
  let used = 0;
  /** @type {PromiseWithResolvers<WebAssembly.Memory>} */
  const fresh = Promise.withResolvers();
  const reading = read?.(fresh.promise);
  reading?.catch(() => {}); // awaited below
  // Pyodide calls this function for its module. Here it gets the compiled one, and the memory's size is set.
  WebAssembly.instantiateStreaming = /** @type {any} */ (
    async (/** @type {unknown} */ _response, /** @type {WebAssembly.Imports} */ imports) => {
      const module = await wasm;
      const env = /** @type {any} */ (imports.env);
      grow = env.emscripten_resize_heap;
      env.emscripten_resize_heap = (/** @type {number} */ bytes) => {
        const grown = fixed || bytes >>> 0 > limit ? 0 : grow(bytes);
        if (!grown) detector.report(); // a later run may have more memory
        return grown;
      };
      const { saveState, restoreState } = env;
      env.saveState = () => {
        const state = saveState();
        if (!state?.threadState) return state; // Python cannot be suspended here
        suspended(true);
        depths.set(state, state.stackState.start);
        bound(depths.values());
        return state;
      };
      env.restoreState = (/** @type {unknown} */ state) => {
        suspended(false);
        depths.delete(state);
        bound(depths.values());
        restoreState(state);
      };
      detector.hook(env);
      env._dlopen_js = libraries.hook(env._dlopen_js);
      const instance = await WebAssembly.instantiate(module, imports);
      const memory = /** @type {WebAssembly.Memory} */ (instance.exports.memory);
      detector.attach(memory);
      hash = createHash(memory);
      setTimeZone = /** @type {() => void} */ (instance.exports.tzset);
      const sizeOf = () => memory.buffer.byteLength;
      // Emscripten asks for more than it needs, and takes what it gets.
      memory.grow = (pages) => growMemory.call(memory, Math.min(pages, (limit - sizeOf()) / WASM_PAGE));
      fresh.resolve(memory);
      image = await reading?.catch(() => undefined);
      const all = await parts; // here, so that files are always made in the same order
      files = all.files;
      proven ??= all.proven;
      used = sizeOf();
      const missing = image ? image.size - used : 0;
      if (missing > 0) memory.grow(missing / WASM_PAGE);
      return { instance, module };
    }
  );
  const home = `${SITE}/sandglass`;
  try {
    const pyodide = await loadPyodide({
      indexURL: ASSETS,
      lockFileContents: JSON.stringify({ info: lock, packages: {} }),
      stdLibURL: `${ASSETS}${STDLIB}`,
      env: { HOME: "/home/pyodide", MPLBACKEND: "agg" },
      fsInit: async (fs) => {
        const folders = new Set(files.map(([name]) => `${home}/${name}`.replace(/\/[^/]*$/, "")));
        for (const folder of folders) fs.mkdirTree(folder);
        // Encoded first, because Emscripten copies a string character by character.
        const encoder = new TextEncoder();
        for (const [name, source] of files) fs.writeFile(`${home}/${name}`, encoder.encode(source), { canOwn: true });
      },
      // The snapshot is still being read; the bytes here only say that there is one.
      ...(reading ? { _loadSnapshot: new Uint8Array(4) } : { _makeSnapshot: true }),
      createPyodideModule: async (/** @type {any} */ settings) => {
        settings.fileNames = fileNames;
        const module = await createPyodideModule(settings);
        libraries.attach(module);
        // A reference from JavaScript is counted in Python's memory. Releasing it when JavaScript collects its garbage
        // would release it once in every guest that the memory is copied to.
        module.finalizationRegistry = { register() {}, unregister() {} };
        settings.API.restoreSnapshot = () => {
          if (!image) throw new Error(DAMAGED);
          copySnapshot(image, module.HEAPU8, used, hash);
          if (proven || isIntact(image, hash)) return image.references;
          image = undefined;
          throw new Error(DAMAGED);
        };
        return module;
      },
    });
    const module = /** @type {any} */ (pyodide)._module;
    bound = boundStack(module);
    /** @type {any} */ (pyodide)._api.on_fatal = (/** @type {unknown} */ error) => void (fatal ??= error);
    const limitMemory = (/** @type {number} */ bytes) => void (limit = Math.floor(bytes / WASM_PAGE) * WASM_PAGE);
    const fixSize = (/** @type {boolean} */ on) => void (fixed = on);
    const hearSuspensions = (/** @type {typeof suspended} */ hear) => void (suspended = hear);
    const own = { hash, grow, limitMemory, fixSize, libraries, setTimeZone, hearSuspensions, fatal: () => fatal };
    return { pyodide, image: /** @type {Image} */ (image), ...own };
  } catch (error) {
    if (reading && !image) return undefined;
    throw error;
  } finally {
    WebAssembly.instantiateStreaming = instantiateStreaming;
  }
}

/**
 * Makes the clock stand still and chance repeat itself, so that every making of a snapshot gives the same bytes. Python's
 * hash seed is among them. Returns a function that undoes it.
 */
function standStill() {
  const [today, now, fill] = [Date.now, performance.now, crypto.getRandomValues];
  Date.now = performance.now = () => SNAPSHOT_TIME;
  crypto.getRandomValues = (bytes) => bytes;
  return () => {
    [Date.now, performance.now, crypto.getRandomValues] = [today, now, fill];
  };
}

/**
 * Tells Python the sizes of its stacks: of the thread, and of those that `callPromising` makes. Returns a function that
 * tells them again, given the stack pointers of the calls that are suspended. What runs meanwhile begins at the lowest of
 * them, and on an empty stack of the engine: it has the whole size from there.
 * @param {any} module
 */
function boundStack(module) {
  const base = module._emscripten_stack_get_base();
  const end = module._emscripten_stack_get_end() + STACK_MARGIN;
  const thread = module._PyThreadState_Get();
  const bound = (/** @type {Iterable<number>} */ suspended) => {
    const top = Math.min(base, ...suspended);
    const size = Math.max(STACK_MARGIN, Math.min(WORKER_STACK, top - end));
    module._PyUnstable_ThreadState_SetStackProtection(thread, top - size, size);
    module._emscripten_stack_set_limits(base, Math.max(top - JSPI_STACK, end));
  };
  bound([]);
  return bound;
}

/**
 * Closes the terminals for good. Emscripten's would write to the page's console and ask the user by `prompt`.
 * @param {any} FS
 */
function leaveTerminals(FS) {
  const open = () => {
    throw new FS.ErrnoError(ENXIO);
  };
  for (const major of TERMINALS) FS.registerDevice(FS.makedev(major, 0), { open });
}

/** @typedef {[encoding: Encoding, body: Uint8Array] | ["refused", why: string]} Answer */
/** @typedef {string | [report: string, encoding: Encoding, final: Uint8Array] | undefined} Ended */

/**
 * Makes functions of the runtime's methods. Some of them may wait. An exception from one is fatal.
 * @param {any} calls  `CALLS` of `browser/guest.py`
 * @param {any} module
 * @param {ReturnType<typeof createBridge>} bridge
 */
function createCalls(calls, module, bridge) {
  const { canBlock } = bridge.python;
  /** @param {string} name */
  const named = (name) => {
    const call = calls.get(name);
    if (!call) throw new Error(`the runtime has no ${name}`);
    return call;
  };
  // To wait, Python blocks or is suspended. Suspending needs `callPromising`.
  const waiting = (/** @type {string} */ name) =>
    canBlock ? named(name) : named(name).callPromising.bind(named(name));
  const [survey, findForeign, saveState, loadState, flush] = [
    "survey",
    "find_foreign",
    "save_state",
    "load_state",
    "flush",
  ].map(named);
  return {
    /** @type {(config: string) => Answer} */
    configure: named("configure"),
    /**
     * Compiles a cell before `execute` runs it. Needed where `execute` runs on a stack of its own (`callPromising`), on
     * which Python's compiler is several times slower.
     * @type {((execution: number, code: string) => void) | undefined}
     */
    prepare: canBlock ? undefined : named("prepare"),
    /**
     * Runs a cell. Resolves to undefined when memory is too short to go on, and to an empty report when the cell waits
     * for more text.
     * @type {(execution: number, code: string, ahead: boolean) => Promise<Ended> | Ended}
     */
    execute: waiting("execute"),
    /**
     * Adds text to a cell that is being written. The next `execute` runs it.
     * @type {(execution: number, text: string, isLast: boolean) => void}
     */
    extend: named("extend"),
    /** Returns true when statements of this code may run before the rest is written. @type {(code: string) => boolean} */
    isPlain: named("is_plain"),
    /** Lists the variables that the next code may use. @returns {SurveyedVariable[]} */
    survey: () => parse(survey()),
    /** @type {(name: string) => Promise<Answer>} */
    getVariable: waiting("get_variable"),
    /** Takes a piece of a text. `setVariable` brings the last piece. @type {(piece: Uint8Array) => void} */
    takeText: named("take_text"),
    /** Takes a piece of a file; false when it is no text. @type {(piece: Uint8Array, last: boolean) => boolean} */
    takeFile: named("take_file"),
    /** @type {(name: string, encoding: Encoding, body: Uint8Array) => Promise<Answer>} */
    setVariable: waiting("set_variable"),
    /** @type {() => Promise<Answer>} */
    listVariables: waiting("list_variables"),
    /** Writes the variables as bytes for another guest. @type {(maxBytes: number, portable: boolean, direct: boolean) => Promise<Answer>} */
    captureState: waiting("capture_state"),
    /** Takes variables of `captureState`. @type {(body: Uint8Array, maxBytes: number) => Promise<Answer>} */
    openState: waiting("open_state"),
    /** @type {(kind: string, path: string, body: Uint8Array, asText: boolean) => ["refused", string] | [Encoding, ...Uint8Array[]]} */
    file: named("file"),
    /** @param {number[]} gone  descriptors that cannot be opened again @returns {LostVariable[]} */
    findForeign: (gone) => parse(findForeign(stringify(gone))),
    /** @returns {[Uint8Array, LostVariable[]]} */
    saveState: () => {
      bridge.begin(0, STATE_MS); // saving runs the user's code, which may not end
      try {
        const [state, lost] = saveState();
        return [state, parse(lost)];
      } finally {
        bridge.end();
      }
    },
    /** Returns a number that depends on where Python's objects would be put next. A run with another outcome hardly gives the same. */
    probe: () => {
      let mark = 0;
      for (const size of PROBED) {
        const at = module._PyMem_Malloc(size);
        mark = (imul(mark, 31) + at) >>> 0;
        module._PyMem_Free(at);
      }
      return mark;
    },
    /** Makes Python look again for files that it has not written itself. @type {() => void} */
    forgetFolders: named("forget_folders"),
    /** @param {Uint8Array} state @returns {LostVariable[]} */
    loadState: (state) => parse(loadState(state)),
    /** Sends the last output of an interpreter that has failed. Often it still can. */
    flush: () => {
      module._PyGILState_Ensure(); // a failed call into C may have left without the interpreter's lock
      flush();
    },
  };
}

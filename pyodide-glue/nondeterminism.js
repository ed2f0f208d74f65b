// Detects nondeterminism in code that runs ahead, or that may have to be repeated: the code asks for the clock, for
// chance, or for JavaScript, whose state no copy of the interpreter's memory holds. The outcome may then differ from
// that of a later run, or of a run in another guest.
// Decisions: docs/internals/running-ahead.md and docs/internals/saving-and-restoring.md.

import { createRecorder } from "./recorder.js";

/** Emscripten's functions that return the time, and the kinds of their notes. */
const TIME = /** @type {const} */ ([
  ["emscripten_date_now", "date"],
  ["emscripten_get_now", "now"],
]);
/** Emscripten's functions that change, or read, what is outside of Python's memory and files. */
const OUTSIDE = [
  "_setitimer_js",
  "__syscall_umask_js",
  "ffi_call_js",
  "ffi_closure_alloc_js",
  "JsModule_GetAll_js",
  "JsProxy_SetAttr_js",
  "JsProxy_DelAttr_js",
  "JsProxy_Dir_js",
  "JsObjMap_GetIter_js",
  "JsObjMap_ass_subscript_js",
  "JsObjMap_contains_js",
  "JsObjMap_length_js",
  "JsObjMap_subscript_js",
  // A name's made-up address depends on the order of the questions.
  "getaddrinfo",
  "_emscripten_lookup_name",
];
/** The number of the runtime's own clock (`_OWN_CLOCK` of browser/guest.py), and that of the clock that it reads. */
const [OWN_CLOCK, MONOTONIC] = [3, 1];
/** Random devices. */
const CHANCE = ["/dev/random", "/dev/urandom"];
/** Emscripten's functions that describe a file by its path, and for each the argument with the address of the description. */
const ABOUT_FILES = /** @type {const} */ ([
  ["__syscall_stat64", 1],
  ["__syscall_lstat64", 1],
  ["__syscall_newfstatat", 2],
]);
/** The offset in a description of its three times, and their length in bytes. */
const [ALL_TIMES, TIMES_LENGTH] = [40, 48];
/** Says that code uses what no note holds. */
const JAVASCRIPT = "it used JavaScript";
/** The offsets in a description of the seconds of the last write and the last change. The nanoseconds follow each. */
const TIMES = [56, 72];
// Taken before any guest code runs: it may replace them.
const { DataView, Promise, Set, TextDecoder, Uint8Array } = self;
const { hasOwn } = Object;
const { max } = Math;
const today = Date.now;

export function createDetector() {
  /** Hears of nondeterminism, once; undefined while no code is watched. @type {(() => void) | undefined} */
  let listener;
  /** Notes the answers of the world; undefined while no execution is recorded. @type {ReturnType<typeof createRecorder> | undefined} */
  let recorder;
  let begunAt = 0;
  /** True while the runtime's own clock stands still. */
  let stands = false;
  /** True when code has used JavaScript, in this guest or in one that its state comes from. */
  let usedJavaScript = false;
  /** True when the state is exactly that of the guest that it comes from. */
  let exact = true;
  /** The glue's objects that Python may hold. @type {Set<unknown>} */
  let own = new Set();
  /** The number of functions that JavaScript is to call once and has not called: callbacks of Pyodide's event loop. */
  let callbacks = 0;
  /**
   * Descriptors that were opened during the run and not described yet. The first description is part of the
   * interpreter's own opening.
   */
  const fresh = new Set();
  const decoder = new TextDecoder();

  /** @type {WebAssembly.Memory | undefined} */
  let memory;
  /**
   * The time of a file's last write or change, in milliseconds since 1970.
   * @param {number} told  the address of its description
   */
  const writtenAt = (told) => {
    if (!memory) return 0;
    const view = new DataView(memory.buffer, told);
    return max(...TIMES.map((at) => Number(view.getBigInt64(at, true)) * 1000 + view.getUint32(at + 8, true) / 1e6));
  };
  /** @param {number} at */
  const textAt = (at) => {
    if (!memory) return "";
    const bytes = new Uint8Array(memory.buffer, at);
    return decoder.decode(bytes.subarray(0, bytes.indexOf(0)));
  };

  const report = () => {
    const told = listener;
    listener = undefined;
    told?.();
  };
  const reportJavaScript = () => {
    usedJavaScript = true;
    report();
    recorder?.end(JAVASCRIPT);
  };
  /** @param {number} at @param {number} length */
  const bytesAt = (at, length) => new Uint8Array(/** @type {WebAssembly.Memory} */ (memory).buffer, at, length);

  /** Hears that a file was described. @param {number} told  the address of its description */
  const described = (told) => {
    if (writtenAt(told) < begunAt) return;
    if (listener) report();
    recorder?.bytes(
      "times",
      () => 0,
      () => bytesAt(told + ALL_TIMES, TIMES_LENGTH),
    );
  };

  /**
   * Returns true for a property of the glue's object itself, and false for one that every object has.
   * @param {any} object @param {number} key
   */
  const isOwn = (object, key) => typeof object !== "function" && own.has(object) && hasOwn(object, textAt(key));

  /** @param {any} callback  no function where it could not be made */
  const counted = (callback) => {
    if (typeof callback !== "function") return callback;
    callbacks += 1;
    let end = () => {
      end = () => {};
      callbacks -= 1;
    };
    const once = (/** @type {any[]} */ ...values) => {
      let result;
      try {
        result = callback(...values);
        return result;
      } finally {
        if (result instanceof Promise) result.then(end, end);
        else end();
      }
    };
    once.destroy = () => {
      end();
      callback.destroy();
    };
    return once;
  };

  return {
    report,

    /** Wraps the functions that Python calls. @param {any} env  Emscripten's functions */
    hook(env) {
      for (const [name, kind] of TIME) {
        const call = env[name];
        env[name] = () => {
          if (listener) report();
          return recorder ? recorder.number(kind, call) : call();
        };
      }
      const draw = env.random_get;
      env.random_get = (/** @type {number} */ at, /** @type {number} */ length) => {
        if (listener) report();
        if (!recorder) return draw(at, length);
        return recorder.bytes(
          "random",
          () => draw(at, length),
          () => bytesAt(at >>> 0, length >>> 0),
        );
      };
      const clock = env.clock_time_get;
      env.clock_time_get = (/** @type {number} */ id, /** @type {bigint} */ precision, /** @type {number} */ told) => {
        if (id === OWN_CLOCK) {
          const failed = clock(MONOTONIC, precision, told);
          if (stands && memory) new DataView(memory.buffer).setBigInt64(told >>> 0, 0n, true);
          return failed;
        }
        if (listener) report();
        if (!recorder || id > OWN_CLOCK) return clock(id, precision, told); // there is no such clock
        return recorder.bytes(
          "clock",
          () => clock(id, precision, told),
          () => bytesAt(told >>> 0, 8),
        );
      };
      for (const name of OUTSIDE) {
        const call = env[name];
        env[name] = (/** @type {any[]} */ ...values) => {
          reportJavaScript();
          return call(...values);
        };
      }
      const makeOnce = env.create_once_callable;
      env.create_once_callable = (/** @type {any[]} */ ...values) => counted(makeOnce(...values));
      const getAttr = env.JsProxy_GetAttr_js;
      env.JsProxy_GetAttr_js = (/** @type {unknown} */ object, /** @type {number} */ key) => {
        // The runtime reads bytes that it was given, and a plain array of bytes reveals nothing.
        if (!(object instanceof Uint8Array) && !isOwn(object, key >>> 0)) reportJavaScript();
        return getAttr(object, key);
      };
      for (const [name, place] of ABOUT_FILES) {
        const call = env[name];
        env[name] = (/** @type {number[]} */ ...values) => {
          const failed = call(...values);
          if ((listener || recorder) && !failed) described(values[place] >>> 0);
          return failed;
        };
      }
      const [open, look] = [env.__syscall_openat, env.__syscall_fstat64];
      env.__syscall_openat = (/** @type {number[]} */ ...values) => {
        const fd = open(...values);
        if ((listener || recorder) && fd >= 0) fresh.add(fd);
        return fd;
      };
      env.__syscall_fstat64 = (/** @type {number} */ fd, /** @type {number} */ told) => {
        const failed = look(fd, told);
        if ((listener || recorder) && !fresh.delete(fd) && !failed) described(told >>> 0);
        return failed;
      };
    },

    /** @param {WebAssembly.Memory} own  Python's */
    attach(own) {
      memory = own;
    },

    /**
     * Ends the boot. Everything until now is the same in every guest.
     * @param {Iterable<unknown>} roles  the glue's objects that Python may hold
     * @param {any} FS  Emscripten's
     */
    ready(roles, FS) {
      own = new Set(roles);
      for (const path of CHANCE) {
        const device = FS.getDevice(FS.lookupPath(path).node.rdev).stream_ops;
        const { read } = device;
        device.read = (/** @type {any[]} */ ...values) => {
          if (listener) report();
          recorder?.end("it read a random device");
          return read(...values);
        };
      }
      usedJavaScript = false;
    },

    /** Begins to watch code. @param {() => void} [onNondeterminism] */
    begin(onNondeterminism = () => {}) {
      begunAt = today();
      fresh.clear();
      listener = onNondeterminism;
      if (usedJavaScript || !exact) report();
    },

    /**
     * Begins to record an execution, or to repeat it by its notes.
     * @param {Uint8Array} noted @param {Parameters<typeof createRecorder>[1]} host
     */
    record(noted, host) {
      recorder = createRecorder(noted, host);
    },

    /** Notes what the world answers; undefined while no execution is recorded. */
    get recorder() {
      return recorder;
    },

    /** Ends the record. */
    endRecord() {
      recorder = undefined;
    },

    /** Stops the runtime's own clock, or lets it run. @param {boolean} on */
    standStill(on) {
      stands = on;
    },

    /** Ends the watch: the code was asked for, or has ended. Returns true when nothing was reported. */
    end() {
      const watched = listener !== undefined;
      listener = undefined;
      return watched;
    },

    get usedJavaScript() {
      return usedJavaScript;
    },

    /** Returns true when JavaScript will call Python later by itself. */
    get hasCallbacks() {
      return callbacks > 0;
    },

    /** Hears that the state was replaced by another guest's. @param {{ usedJavaScript: boolean, exact: boolean }} state */
    restored(state) {
      usedJavaScript = state.usedJavaScript;
      exact = state.exact;
    },
  };
}

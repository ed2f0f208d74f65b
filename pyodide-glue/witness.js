// Notices when code that runs ahead of its time asks for what only the world can answer: the clock, chance, and JavaScript, whose state
// is in no copy of the interpreter's memory. What it comes to may then differ from what it would come to later, or in another guest.

/** Emscripten's functions that tell the time, or that are chance. */
const WORLD = ["clock_time_get", "emscripten_date_now", "emscripten_get_now", "random_get"];
/** Those by which code changes what is outside of Python's memory and files, or learns of it. */
const OUTSIDE = [
  "_setitimer_js",
  "__syscall_umask_js",
  "ffi_call_js",
  "ffi_closure_alloc_js",
  "JsModule_GetAll_js",
  "JsProxy_SetAttr_js",
  "JsProxy_DelAttr_js",
  "JsProxy_Dir_js",
];
/** Those that tell of a file by its path, and which of their arguments says where to. */
const ABOUT_FILES = /** @type {const} */ ([
  ["__syscall_stat64", 1],
  ["__syscall_lstat64", 1],
  ["__syscall_newfstatat", 2],
]);
/** Where in what they tell the seconds are of when the file was last written, and the nanoseconds. */
const WRITTEN = { seconds: 56, nanoseconds: 64 };
// Taken before any guest code runs: it may replace them.
const { DataView, Set, Uint8Array } = self;
const today = Date.now;

export function createWitness() {
  /** Whom to tell, once. @type {(() => void) | undefined} */
  let tell;
  let begunAt = 0;
  /** Whether code has used JavaScript, in this guest or in one that its state comes from. */
  let touched = false;
  /** Whether the state is exactly that of the guest that it comes from. */
  let exact = true;
  /** What Python may hold of the glue's. @type {Set<unknown>} */
  let own = new Set();

  /** @type {WebAssembly.Memory | undefined} */
  let memory;
  /** Milliseconds since 1970. @param {number} told */
  const writtenAt = (told) => {
    if (!memory) return 0;
    const view = new DataView(memory.buffer, told);
    return Number(view.getBigInt64(WRITTEN.seconds, true)) * 1000 + view.getUint32(WRITTEN.nanoseconds, true) / 1e6;
  };

  const see = () => {
    const told = tell;
    tell = undefined;
    told?.();
  };
  const touch = () => {
    touched = true;
    see();
  };

  return {
    see,

    /** Stands before what Python calls. @param {any} env  Emscripten's functions */
    hook(env) {
      for (const name of WORLD) {
        const call = env[name];
        env[name] = (/** @type {any} */ a, /** @type {any} */ b, /** @type {any} */ c) => {
          if (tell) see();
          return call(a, b, c);
        };
      }
      for (const name of OUTSIDE) {
        const call = env[name];
        env[name] = (/** @type {any[]} */ ...values) => {
          touch();
          return call(...values);
        };
      }
      const getAttr = env.JsProxy_GetAttr_js;
      env.JsProxy_GetAttr_js = (/** @type {unknown} */ object, /** @type {number} */ key) => {
        // The runtime reads bytes that it was given; a number of them tells nothing.
        if (!own.has(object) && !(object instanceof Uint8Array)) touch();
        return getAttr(object, key);
      };
      for (const [name, place] of ABOUT_FILES) {
        const call = env[name];
        env[name] = (/** @type {number[]} */ ...values) => {
          const failed = call(...values);
          if (tell && !failed && writtenAt(values[place] >>> 0) >= begunAt) see();
          return failed;
        };
      }
    },

    /** @param {WebAssembly.Memory} own  Python's */
    attach(own) {
      memory = own;
    },

    /** All that was done so far is what every guest does. @param {Iterable<unknown>} roles  what Python may hold of the glue's */
    ready(roles) {
      own = new Set(roles);
      touched = false;
    },

    /** Code runs that nobody has asked for yet: `tells` is called when what it comes to is not certain. @param {() => void} tells */
    begin(tells) {
      begunAt = today();
      tell = tells;
      if (touched || !exact) see();
    },

    /** Somebody has asked for it, or it is over; whether it was still watched. */
    end() {
      const watched = tell !== undefined;
      tell = undefined;
      return watched;
    },

    get touched() {
      return touched;
    },

    /** The state is another guest's. @param {{ touched: boolean, exact: boolean }} state */
    restored(state) {
      touched = state.touched;
      exact = state.exact;
    },
  };
}

// The crossing between Python and the host: the only code that makes Python wait or stop.
//
// Waiting: with a mailbox (in a cross-origin isolated frame), Python blocks in `Atomics.wait`. Without one, JSPI
// suspends the whole interpreter while a promise is pending.
//
// Stopping: the interpreter polls its "interrupt buffer" while it runs. Our buffer is a getter that looks at the clock.
// Every BREATH_MS it raises a signal, and Python's signal handler (browser/bridge.py) takes a *breath*: it suspends the
// interpreter for one trip through the event loop. So an `interrupt` message arrives although Python is computing. This
// works in loops, in regular expressions and in sort keys, in any page. Only a single long call into C runs to its end.
// Decisions: docs/internals/guest-in-a-browser.md and docs/internals/values-and-calls.md.

import { plainBytes } from "./bytes.js";
import { readMailbox } from "./mailbox.js";

/** @import { Encoding, Event, ReplyStatus, Request, StopReason, Stream } from "../pkg/sandglass.js" */
/** @import { createLibrary } from "./library.js" */
/** @import { createDetector } from "./nondeterminism.js" */

const BREATH_MS = 50;
/** The time after a message or an exchange's begin in which output waits for the next message, in milliseconds. */
const HOLD_MS = 20;
/** The length from which output never waits, in characters. */
const MAX_HELD = 4096;
/** The pause between two interrupts. Python may swallow one, so they repeat until the host's grace period is over. */
const REPEAT_MS = 200;
/** Pauses, each so long in milliseconds, within which Python goes on after a wait. All that wakes it has its turn meanwhile. */
const WAKING = { pauses: 50, ms: 10 };
/** The signal that calls Python's handler: the highest number, which browser/bridge.py keeps from user code. */
const SIGNAL = 64;

const canSuspend = "Suspending" in WebAssembly;
const now = performance.now.bind(performance);
/** The most bytes that C code may write within one cell. The rest is dropped. */
const MAX_WRITTEN_BYTES = 16_000_000;
const SHORT_TEXT = 10_000;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
/** Decodes a text. Returns the bytes themselves if they hold lone surrogates. @param {Uint8Array} body */
const decode = (body) => {
  try {
    return decoder.decode(body);
  } catch {
    return body;
  }
};
const { Map, Promise, setTimeout, clearTimeout, queueMicrotask } = self;

/**
 * Posts an event and its body, after the held events. `null` posts only the held events. With `hold`, the event waits
 * for the next post.
 * @typedef {(event: Event | null, body?: Uint8Array, hold?: boolean) => void} Post
 */

/** @typedef {[status: ReplyStatus, encoding: Encoding, body: Uint8Array | string]} Answer */

/**
 * @param {Post} post
 * @param {SharedArrayBuffer | undefined} mailbox
 * @param {ReturnType<typeof createDetector>} detector
 * @param {ReturnType<typeof createLibrary>} library
 */
export function createBridge(post, mailbox, detector, library) {
  /** The current exchange; 0 between exchanges. */
  let exchange = 0;
  let deadline = Infinity;
  let nextLook = Infinity;
  /** The reason why Python has to stop. @type {StopReason | null} */
  let stopping = null;
  /** Ends Python's current wait. @type {(() => void) | null} */
  let endWait = null;
  /** The number of times that Python was suspended, and whether it is. */
  let suspensions = 0;
  let isSuspended = false;

  let holdUntil = 0;
  /** The time from which the clock may have had an effect on the exchange. */
  let steadyUntil = 0;
  /** True while cells are repeated: their output and displays are known already, and they take no breath. */
  let repeats = false;

  /** @type {[fd: number, bytes: Uint8Array][]} */
  let written = [];
  let writtenBytes = 0;

  let lastCall = 0;
  let unanswered = 0;
  /** Calls that Python waits for, by number; null until their answer is there. @type {Map<number, Answer | null>} */
  const calls = new Map();
  /** Calls that are posted once Python really waits. @type {[number, string, Encoding, Uint8Array][]} */
  let unsent = [];
  /** @type {(() => void) | null} */
  let allAnswered = null;

  /** Pieces of the cell being written that Python has not taken yet. @type {{ text: string, isLast: boolean }[]} */
  let texts = [];
  /** The whole rest of the cell being written, once the cell was asked for. @type {string | undefined} */
  let rest;
  /** Set while the exchange waits for more text, with Python outside of it. @type {(() => void) | null} */
  let wake = null;

  /** The number of functions on the stack that `run_sync` does not know of. */
  let inside = 0;

  const breath = new MessageChannel();
  /** @type {() => void} */
  let breathTaken = () => {};
  breath.port1.onmessage = () => breathTaken();

  /**
   * Makes a promise for Python to wait for. It never rejects; `undefined` says that Python has to stop.
   * @template T
   * @param {(resolve: (value: T) => void) => (() => void) | void} start  begins the work, and resolves later only;
   * returns a function that gives it up
   * @returns {Promise<T | undefined>}
   */
  const wait = (start) =>
    new Promise((resolve) => {
      steadyUntil = 0;
      post(null);
      if (!isSuspended) endWait?.(); // one that was begun, and for which Python could not be suspended
      if (stopping) return resolve(interrupted());
      const giveUp = start((value) => {
        endWait = null;
        resolve(value);
        expectPython();
      });
      endWait = () => {
        endWait = null;
        giveUp?.();
        resolve(interrupted());
        expectPython();
      };
    });

  /** Gives the guest up when Python does not go on. Callbacks in Python wake it, and fail where memory or the stack is full. */
  const expectPython = () => {
    const suspension = suspensions;
    let pauses = WAKING.pauses;
    const look = () => {
      if (!isSuspended || suspensions !== suspension) return;
      if (pauses-- > 0) setTimeout(look, WAKING.ms);
      else post({ type: "fatal", message: "memory or the stack was too full for Python to go on after a wait" });
    };
    look();
  };

  /**
   * The result of a wait that Python's stop has ended. Such a wait raises KeyboardInterrupt itself, so the next
   * interrupt has time.
   */
  const interrupted = () => {
    nextLook = now() + REPEAT_MS;
    return undefined;
  };

  /** @param {StopReason} reason */
  const stop = (reason) => {
    stopping ??= reason;
    // A wait that ends raises KeyboardInterrupt itself. The next interrupt leaves Python time to clean up.
    nextLook = endWait ? now() + REPEAT_MS : 0;
    endWait?.();
  };

  /** Posts what was noted of the world's answers. It leaves with the next event. */
  const postNotes = () => {
    const notes = detector.recorder?.take();
    if (notes) post({ type: "noted", exchange }, notes, true);
  };

  /** Posts the registered calls. @param {boolean} blocking  whether the answers have to come by mailbox */
  const send = (blocking) => {
    const events = unsent;
    unsent = [];
    const batch = events.length;
    postNotes();
    for (const [index, [call, name, encoding, body]] of events.entries()) {
      post({ type: "hostCall", exchange, call, batch, name, encoding, blocking }, body, index < batch - 1);
    }
    holdUntil = now() + HOLD_MS;
  };

  /** @param {Extract<Request, { type: "hostReply" }>} reply @param {Uint8Array} body */
  const accept = ({ call, status, encoding, message }, body) => {
    if (calls.get(call) !== null) return;
    // A short text crosses at once as a string. A long one is copied as bytes and decoded by Python, which is faster.
    const isShort = encoding === "text" && body.length < SHORT_TEXT;
    calls.set(call, [status, encoding, status !== "ok" ? (message ?? "") : isShort ? decode(body) : body]);
    unanswered -= 1;
    if (unanswered === 0) allAnswered?.();
  };

  const read = mailbox && readMailbox(mailbox);

  /** Hears that the code which runs ahead was asked for. @param {number} number @param {string} [more]  the rest of its text */
  const promote = (number, more) => {
    if (number !== exchange) return;
    rest = more;
    const watched = detector.end();
    if (wake) wake();
    else if (watched) post({ type: "promoted", exchange });
  };

  /** Blocks until a message comes, or for at most `ms`, and handles it. @param {number} ms */
  const block = (ms) => {
    steadyUntil = 0;
    const message = read?.(ms);
    if (message?.request.type === "library") library.take(message.request.missing ?? message.body);
    if (message?.request.type === "hostReply") accept(message.request, message.body);
    if (message?.request.type === "promote") promote(message.request.exchange, message.request.rest);
    if (message?.request.type === "interrupt" && message.request.exchange === exchange)
      stopping ??= message.request.reason;
  };

  /**
   * Waits for the archive of the standard library. Returns true, or the reason why it is missing.
   * @returns {Promise<true | string | undefined> | true | string | undefined}
   */
  const waitForLibrary = () => {
    if (mailbox) {
      post(null);
      library.ask(true);
      while (!library.isThere && !library.missing && !stopping) {
        block(deadline - now());
        if (now() >= deadline) stopping ??= "timeout";
      }
      return library.isThere || library.missing || interrupted();
    }
    return wait((resolve) => {
      library.onAnswer(() => resolve(library.isThere || library.missing));
      library.ask(false);
      const left = deadline - now();
      if (left === Infinity) return undefined;
      const timer = setTimeout(() => stop("timeout"), left);
      return () => clearTimeout(timer);
    });
  };

  return {
    capabilities: {
      bridge: mailbox ? "atomics" : canSuspend ? "jspi" : "none",
      softInterrupt: canSuspend || mailbox !== undefined,
    },

    // ---- for worker.js ----

    /** Begins to record the exchange. @param {Uint8Array} noted  the notes of an earlier run */
    record(noted) {
      detector.record(noted, {
        broke: (why) => post({ type: "unnoted", exchange, why }, undefined, true),
        differs: (what) => post({ type: "differs", exchange, what }),
      });
    },

    /** Ends the record of the exchange. */
    endRecord() {
      detector.recorder?.finish();
      postNotes();
      detector.endRecord();
    },

    /** @param {number} number @param {number} timeoutMs */
    begin(number, timeoutMs) {
      const time = now();
      exchange = number;
      stopping = null;
      deadline = time + timeoutMs;
      nextLook = Math.min(deadline, time + BREATH_MS);
      holdUntil = time + HOLD_MS;
      steadyUntil = nextLook;
    },

    /** Begins or ends to repeat cells in the exchange. @param {boolean} on */
    repeat(on) {
      repeats = on;
      nextLook = deadline;
    },

    /** Returns true when the exchange's code has not waited, and has not run for so long that it took a breath. */
    get isSteady() {
      return now() < steadyUntil;
    },

    /** Returns true when Python is in an exchange. */
    busy: () => exchange !== 0,

    /**
     * Forgets all messages and calls of the guest's earlier state, also those that it has not read. Calls are numbered
     * from 1 again.
     */
    beginAnew() {
      while (read?.(0));
      texts = [];
      rest = undefined;
      forget();
      lastCall = 0;
    },

    /**
     * Takes more of the text that is being written, or the last of it.
     * @param {number} number @param {string} text @param {boolean} isLast
     */
    extend(number, text, isLast) {
      if (number !== exchange) return;
      texts.push({ text, isLast });
      wake?.();
    },

    /**
     * Waits for more text between two statements. The exchange's time stands still meanwhile.
     * @returns {Promise<{ text: string, isLast: boolean, isAsked?: boolean }>}  `isAsked`: the host waits for the
     * outcome
     */
    async nextText() {
      if (stopping) detector.report(); // out of time ahead of its call; in a later run it might not be
      if (texts.length === 0 && rest === undefined) {
        const begun = now();
        nextLook = Infinity;
        post({ type: "waiting", exchange });
        await new Promise((resolve) => (wake = () => resolve(undefined)));
        wake = null;
        const time = now();
        deadline += time - begun;
        nextLook = Math.min(deadline, time + BREATH_MS);
        holdUntil = time + HOLD_MS;
      }
      return texts.shift() ?? { text: rest ?? "", isLast: true, isAsked: true };
    },

    /** Ends the exchange. Returns the reason why Python was told to stop, if it was. */
    end() {
      texts = [];
      rest = undefined;
      endWait?.();
      const reason = stopping;
      exchange = 0;
      stopping = null;
      nextLook = deadline = Infinity;
      written = [];
      writtenBytes = 0;
      forget();
      return reason;
    },

    reply: accept,
    promote,
    waitForLibrary,

    /** Waits for the library outside of Python, where Python could not wait. This time counts, as that of an import does. */
    async haveLibrary() {
      if (!mailbox && !library.isThere) await waitForLibrary();
      if (stopping) nextLook = 0; // no wait of Python's ends here, so nothing has raised KeyboardInterrupt
    },

    /** @param {number} number @param {StopReason} reason */
    interrupt(number, reason) {
      if (number === exchange) stop(reason);
    },

    // ---- for Pyodide ----

    /**
     * Has this function of Pyodide count as one on the stack. `run_sync` knows of those only that code calls.
     * @param {any} module @param {string} name
     */
    notice(module, name) {
      const original = module[name];
      module[name] = (/** @type {any[]} */ ...args) => {
        inside++;
        try {
          return original(...args);
        } finally {
          inside--;
        }
      };
    },

    /** Hears that Python is suspended, or goes on. @param {boolean} on */
    suspended(on) {
      if (on) suspensions += 1;
      isSuspended = on;
    },

    /** The interrupt buffer, which the interpreter polls while it runs. */
    interruptBuffer: {
      get 0() {
        const time = now();
        if (time < nextLook) return 0;
        nextLook = time + BREATH_MS; // otherwise the next poll would interrupt the handler itself
        return SIGNAL;
      },
      set 0(_value) {},
    },

    /**
     * Keeps bytes that C code writes to file descriptor 1 or 2. C code writes without the interpreter's lock, so Python
     * cannot take them at once.
     * @param {number} fd @param {Uint8Array} bytes
     */
    write(fd, bytes) {
      // While Python waits, the writer cannot be the cell.
      if (!exchange || endWait) return bytes.length;
      writtenBytes += bytes.length;
      if (writtenBytes <= MAX_WRITTEN_BYTES) written.push([fd, bytes.slice()]);
      return bytes.length;
    },

    /** The functions for browser/bridge.py. User code can reach them, so none of them answers a call or ends an exchange. */
    python: {
      /** @type {(stream: Stream, skipped: number, text: string) => void} */
      output(stream, skipped, text) {
        if (!exchange || repeats) return;
        const time = now();
        const hold = time < holdUntil && text.length < MAX_HELD;
        if (!hold) holdUntil = time + HOLD_MS;
        post({ type: "output", exchange, stream, skipped, text: text.toWellFormed() }, undefined, hold);
      },

      /** @type {(mime: string, data: Uint8Array, isResult: boolean) => void} */
      display(mime, data, isResult) {
        const bytes = plainBytes(data);
        if (exchange && !repeats)
          post({ type: "display", exchange, mime: `${mime}`, isResult: isResult === true }, bytes);
      },

      get hasWritten() {
        return written.length > 0;
      },

      takeWritten() {
        const taken = written;
        written = [];
        writtenBytes = 0;
        return taken;
      },

      /**
       * Calls a host function once for each pair in `flat`. Returns three elements for each call's answer. The calls
       * are posted when Python is really suspended, so that nothing runs while the host believes that Python waits.
       * @param {string} name @param {(string | Uint8Array)[]} flat  the encoding and the body of each call
       */
      ask(name, flat) {
        for (let i = 0; i + 1 < flat.length; i += 2) {
          const body = flat[i + 1];
          const bytes = typeof body === "string" ? encoder.encode(body) : plainBytes(body);
          lastCall += 1;
          calls.set(lastCall, null);
          unanswered += 1;
          unsent.push([lastCall, `${name}`, /** @type {Encoding} */ (`${flat[i]}`), bytes]);
        }
        const begun = now();
        detector.recorder?.calls(flat.length / 2);
        if (mailbox) {
          send(true);
          while (unanswered > 0) {
            if (stopping) return interrupted();
            block(Infinity);
          }
          return takeAnswers(begun);
        }
        queueMicrotask(() => send(false));
        return wait((resolve) => (allAnswered = () => resolve(takeAnswers(begun))));
      },

      /** Drops registered calls that Python will not wait for after all. */
      forget,

      /** @param {number | undefined} ms */
      sleep(ms) {
        const { recorder } = detector;
        if (recorder?.hasSlept) {
          if (mailbox) return true;
          return wait((resolve) => {
            const timer = setTimeout(() => resolve(true), 0);
            return () => clearTimeout(timer);
          });
        }
        if (mailbox) {
          post(null);
          const until = Math.min(ms === undefined ? Infinity : now() + ms, deadline);
          while (now() < until && !stopping) block(until - now());
          if (now() >= deadline) stopping ??= "timeout";
          if (stopping) return interrupted();
          recorder?.slept();
          return true;
        }
        return wait((resolve) => {
          const left = deadline - now();
          const overdue = ms === undefined || ms > left;
          const wakeUp = () => {
            recorder?.slept();
            resolve(true);
          };
          const timer = setTimeout(() => (overdue ? stop("timeout") : wakeUp()), overdue ? left : ms);
          return () => clearTimeout(timer);
        });
      },

      /**
       * The rest of the text that is being written. Code that reads it too early depends on the world outside, as
       * reported here.
       */
      rest() {
        if (rest === undefined) detector.report();
        return rest ?? "";
      },

      canBlock: mailbox !== undefined,

      /** False until the archive of the standard library can be read. */
      get hasLibrary() {
        return library.isThere;
      },

      library: waitForLibrary,

      /** Returns true when Python has to stop now. Python's signal handler asks. */
      overdue() {
        const time = now();
        if (time >= deadline) stopping ??= "timeout";
        block(0);
        if (mailbox) post(null); // code that computes on would keep held output back; elsewhere a breath posts it
        nextLook = stopping ? time + REPEAT_MS : Math.min(deadline, time + BREATH_MS);
        return stopping !== null;
      },

      /** Lets the event loop run once. */
      breathe() {
        return wait((resolve) => {
          breathTaken = () => resolve(true);
          breath.port2.postMessage(null);
        });
      },

      /** Returns true while Pyodide's own JavaScript is on the stack: then Python cannot be suspended. */
      isInside: () => inside > 0,

      /** Asks for another look soon. The handler calls this when it cannot raise an exception at this moment. */
      lookAgain() {
        nextLook = now() + 1;
      },
    },
  };

  /** Returns the answers in the order of the calls. The exchange's clock stood still since `begun`. @param {number} begun */
  function takeAnswers(begun) {
    const time = now();
    deadline += time - begun;
    nextLook = Math.min(deadline, time + BREATH_MS);
    const answers = [...calls.values()].flatMap((answer) => answer ?? []);
    forget();
    return answers;
  }

  function forget() {
    allAnswered = null;
    unanswered = 0;
    calls.clear();
    unsent = [];
  }
}

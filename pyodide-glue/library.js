// The archive of the standard library. A guest that starts from a snapshot has the modules that most code imports, so it
// starts without the archive, and gets it when Python first reads it. Until then the file is there, with its size and
// unreadable. Python waits for it in `browser/bridge.py`.
// Decisions: docs/internals/guest-in-a-browser.md.

/** Emscripten's number of an error: try again. */
const EAGAIN = 6;
// Taken before any guest code runs: lockDown removes it.
const ask = globalThis.postMessage?.bind(globalThis);
const { Uint8Array } = self;

export function createLibrary() {
  /** @type {Uint8Array<ArrayBuffer> | undefined} */
  let archive;
  /** The reason why the archive is missing; empty while it is on its way. */
  let missing = "";
  /** Hears of an answer. @type {() => void} */
  let told = () => {};
  /** Puts the archive into the file that stands for it. */
  let put = () => {};

  return {
    /** Asks the frame for the archive. @param {boolean} isBlocked  whether the answer has to come by the mailbox */
    ask(isBlocked) {
      missing = "";
      ask(["library", isBlocked]);
    },

    /** Takes the frame's answer. @param {Uint8Array<ArrayBuffer> | string} answer */
    take(answer) {
      if (typeof answer === "string") missing = answer;
      else if (!archive) {
        archive = answer;
        put();
      }
      told();
    },

    /** True when the file can be read. */
    get isThere() {
      return archive !== undefined;
    },

    /** The reason why it is missing; empty before the answer. */
    get missing() {
      return missing;
    },

    /** Calls `then` at the next answer. @param {() => void} then */
    onAnswer(then) {
      told = then;
    },

    /** Fetches the archive for a start that needs it. */
    async load() {
      this.ask(false);
      await /** @type {Promise<void>} */ (new Promise((resolve) => (told = resolve)));
      if (!archive) throw new Error(missing);
    },

    /** The archive, if it is there. */
    get archive() {
      return archive;
    },

    /** Makes the file of the archive, if the archive is not there yet. @param {any} FS @param {string} path */
    stand(FS, path) {
      if (archive) return;
      const { node } = FS.lookupPath(path);
      const space = new Uint8Array(STDLIB_BYTES);
      const { stream_ops: usual } = node;
      const refuse = () => {
        throw new FS.ErrnoError(EAGAIN);
      };
      node.stream_ops = { __proto__: usual, read: refuse, mmap: refuse };
      node.contents = space;
      node.usedBytes = space.length;
      put = () => {
        node.stream_ops = usual;
        // Code may have written to the file, or removed it.
        if (node.contents === space) node.contents = archive;
      };
    },
  };
}

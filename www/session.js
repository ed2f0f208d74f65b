// The sandbox of this page and its life: booting, running cells one after the other, restarting, gone.

import { createSandbox } from "../pyodide-glue/index.js";

/** @import { CodeExecution, ExecuteOptions, Sandbox, SandboxOptions } from "../pkg/sandglass.js" */
/** @typedef {"booting" | "ready" | "running" | "restarting" | "destroyed" | "failed"} State */
/** @typedef {(typeof STAGES)[number]} Stage  of a boot */

const STAGES = /** @type {const} */ (["assets", "python", "ready"]);

export class Session extends EventTarget {
  /** @type {Sandbox | undefined} */
  #sandbox;
  /** @type {Promise<Sandbox> | undefined} */
  #started;
  /** Counts the sandboxes, so that nothing of an earlier one changes anything. */
  #generation = 0;
  /** The end of the line of cells. @type {Promise<unknown>} */
  #line = Promise.resolve();
  #options;
  /** @type {unknown} */
  #context = null;
  #running = 0;

  /** @type {State} */
  state = "destroyed";
  /** @type {Stage} */
  stage = "assets";
  /** Why it could not start. */
  problem = "";

  /** @param {SandboxOptions} options */
  constructor(options) {
    super();
    this.#options = options;
  }

  /** What the running sandbox can do. */
  get capabilities() {
    return this.#sandbox?.capabilities;
  }

  /** Starts a sandbox with the same context and nothing else of an earlier one. @param {State} [state] */
  async start(state = "booting") {
    const generation = this.#dismiss();
    this.stage = "assets";
    this.#become(state);
    const onProgress = (/** @type {{ stage: string }} */ { stage }) => {
      const reached = STAGES.find((known) => known === stage);
      if (reached && generation === this.#generation) this.#progress(reached);
    };
    this.#started = this.#create(generation, onProgress);
    await this.#started.catch(() => {});
  }

  /** The options of the next sandbox. @param {SandboxOptions} options */
  configure(options) {
    this.#options = { ...this.#options, ...options };
  }

  /** A new sandbox: everything but the context is gone. */
  restart() {
    return this.start("restarting");
  }

  /** Ends the sandbox. */
  shutDown() {
    this.#dismiss();
    this.#become("destroyed");
  }

  /** Makes `context` the Python variable `context`, now and after every restart. @param {unknown} context */
  async setContext(context) {
    this.#context = context;
    await this.#sandbox?.initialize(context);
  }

  /**
   * Runs a cell when those before it are done. Rejects when the sandbox cannot run it.
   * @param {string} code
   * @param {ExecuteOptions & { onStart: () => void }} options
   * @returns {Promise<CodeExecution>}
   */
  run(code, { onStart, ...options }) {
    const generation = this.#generation;
    const mine = this.#line.then(async () => {
      if (!this.#started || generation !== this.#generation) throw new Error("there is no sandbox; start one");
      const sandbox = await this.#started;
      onStart();
      this.#running++;
      this.#settle();
      try {
        return await sandbox.execute(code, options);
      } catch (error) {
        if (generation !== this.#generation)
          throw new Error("the sandbox was restarted or shut down", { cause: error });
        if (this.stage !== "ready") this.#fail(error);
        throw error;
      } finally {
        if (generation === this.#generation) {
          this.#running--;
          this.#settle();
        }
      }
    });
    this.#line = mine.catch(() => {});
    return mine;
  }

  /** Tells the sandbox which code will probably be run next. @param {string} code */
  async hint(code) {
    await this.#sandbox?.hint(code).catch(() => {}); // what cannot be done ahead is told when it is done
  }

  /** What the running sandbox has done so far. */
  stats() {
    return this.#sandbox?.stats();
  }

  /** The user's variables; none while there is no sandbox. */
  async variables() {
    return (await this.#sandbox?.listVariables()) ?? [];
  }

  /** @param {string} name @returns {Promise<unknown>} */
  async variable(name) {
    return this.#sandbox?.getVariable(name);
  }

  /** @param {number} generation @param {SandboxOptions["onProgress"]} onProgress */
  async #create(generation, onProgress) {
    try {
      const sandbox = await createSandbox({ ...this.#options, onProgress });
      let context;
      do {
        // Another one may be chosen meanwhile.
        context = this.#context;
        await sandbox.initialize(context);
      } while (context !== this.#context);
      if (generation !== this.#generation) {
        await sandbox.destroy();
        throw new Error("the sandbox was restarted or shut down");
      }
      this.#sandbox = sandbox;
      this.#become("ready");
      return sandbox;
    } catch (error) {
      if (generation === this.#generation) this.#fail(error);
      throw error;
    }
  }

  /** Lets go of the sandbox there is. */
  #dismiss() {
    void this.#sandbox?.destroy();
    this.#sandbox = this.#started = undefined;
    this.#running = 0;
    this.#line = Promise.resolve();
    return ++this.#generation;
  }

  /** The sandbox replaces a guest that it had to end by itself; its boot is heard the same way. @param {Stage} stage */
  #progress(stage) {
    this.stage = stage;
    if (!this.#sandbox) this.#become(this.state);
    else if (stage === "ready") this.#settle();
    else this.#become("restarting");
  }

  #settle() {
    if (this.stage === "ready") this.#become(this.#running > 0 ? "running" : "ready");
  }

  /** @param {unknown} error */
  #fail(error) {
    this.problem = error instanceof Error ? error.message : String(error);
    this.#become("failed");
  }

  /** @param {State} state */
  #become(state) {
    this.state = state;
    this.dispatchEvent(new Event("state"));
  }
}

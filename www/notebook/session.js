// The notebook's sandboxes and their life: booting, running cells one after the other, going back, forks, shut down.

import { createSandbox, deletePersisted, listPersisted } from "../../pyodide-glue/index.js";

/** @import { CodeExecution, ExecuteOptions, LoadOptions, Sandbox, SandboxOptions } from "../../pkg/sandglass.js" */
/** @typedef {"booting" | "ready" | "running" | "restarting" | "destroyed" | "failed"} State */
/** @typedef {(typeof STAGES)[number]} Stage  the stage of a boot */

const STAGES = /** @type {const} */ (["assets", "python", "ready"]);

/** The name under which the browser keeps the sandbox of the notebook. */
const KEPT = "playground";
/** The most branches, the first one included. */
const MAX_BRANCHES = 5;

/**
 * The sandbox of the notebook, and its forks. Cells run in the one that is chosen. Dispatches `state` at each change of `state` or
 * `stage`, and `branches` when there are others or another one is chosen.
 */
export class Session extends EventTarget {
  /** The chosen sandbox. @type {Sandbox | undefined} */
  #sandbox;
  /** The first sandbox and its forks. @type {{ name: string, sandbox: Sandbox }[]} */
  #branches = [];
  #forks = 0;
  /** @type {WeakMap<Sandbox, string[]>} */
  #packages = new WeakMap();
  /**
   * The runs of cells that made a sandbox's state: their numbers there, and their numbers in this session. Forks count their executions
   * each for itself, and a restarted sandbox from 1, so the first do not tell runs apart.
   * @type {WeakMap<Sandbox, { id: number, run: number }[]>}
   */
  #runs = new WeakMap();
  /** The number of runs so far, those in earlier sandboxes included. */
  #lastRun = 0;
  /** @type {Promise<Sandbox> | undefined} */
  #started;
  /** The number of sandboxes so far, so that late events of an earlier one are ignored. */
  #generation = 0;
  /** The last cell in the queue. @type {Promise<unknown>} */
  #line = Promise.resolve();
  #options;
  /** @type {unknown} */
  #context = null;
  /** True if the next sandbox goes on from what the browser has kept. */
  #resumes = true;
  #running = 0;

  /** @type {State} */
  state = "destroyed";
  /** @type {Stage} */
  stage = "assets";
  /** The error for which the sandbox could not start. */
  problem = "";

  /** True if the state of an earlier visit came back. */
  isResumed = false;
  /** The end of earlier sandboxes. @type {Promise<unknown>} */
  #ended = Promise.resolve();
  /** The reason for which the browser does not keep the variables. */
  unkept = "";
  /** The number of the execution whose state the browser has kept. @type {number | undefined} */
  #kept;

  /** @param {SandboxOptions} options */
  constructor(options) {
    super();
    this.#options = options;
  }

  /** The running sandbox's capabilities. */
  get capabilities() {
    return this.#sandbox?.capabilities;
  }

  /** Returns true if the browser has kept a sandbox, which the first start continues. */
  async isKept() {
    const kept = await listPersisted().catch(() => []);
    return kept.some(({ name }) => name === KEPT);
  }

  /**
   * Starts a sandbox: the one that the browser has kept, or at later starts a new one, which takes over only the context.
   * @param {State} [state]
   */
  async start(state = "booting") {
    const generation = this.#dismiss();
    this.stage = "assets";
    this.#kept = undefined;
    this.#become(state);
    /** @type {SandboxOptions["onProgress"]} */
    const onProgress = (progress) => {
      if (generation !== this.#generation) return;
      if (progress.stage === "kept" || progress.stage === "unkept") return this.#keep(progress);
      const reached = STAGES.find((known) => known === progress.stage);
      if (reached) this.#progress(reached);
    };
    this.#started = this.#create(generation, onProgress);
    await this.#started.catch(() => {});
  }

  /** True if the browser has kept the state after the last run. It does so soon after the run. Forks are not kept. */
  get areVariablesKept() {
    const [first] = this.#branches;
    const last = first && this.#runs.get(first.sandbox)?.at(-1);
    return this.#running === 0 && last !== undefined && last.id === this.#kept && this.#sandbox === first?.sandbox;
  }

  /** Notes that the browser has kept a state, or could not. @param {{ execution: number, reason?: string }} progress */
  #keep({ execution, reason }) {
    this.#kept = reason === undefined ? execution : undefined;
    this.dispatchEvent(new CustomEvent("kept", { detail: reason }));
  }

  /** The branches' names. */
  get branches() {
    return this.#branches.map(({ name }) => name);
  }

  /** The chosen branch's name. */
  get branch() {
    return this.#branches.find(({ sandbox }) => sandbox === this.#sandbox)?.name ?? "";
  }

  /**
   * Goes back to the state before the last execution. Resolves to the number of the execution whose state is current now, and to the
   * runs that are taken back.
   */
  async undo() {
    const sandbox = this.#idle();
    const last = await sandbox.undo();
    const runs = this.#runs.get(sandbox) ?? [];
    this.#runs.set(
      sandbox,
      runs.filter(({ id }) => id <= last),
    );
    return { last, runs: new Set(runs.filter(({ id }) => id > last).map(({ run }) => run)) };
  }

  /** Makes a copy of the chosen sandbox with its state, and chooses the copy. */
  async fork() {
    if (this.#branches.length >= MAX_BRANCHES) throw new Error(`there are ${MAX_BRANCHES} branches already: close one`);
    const generation = this.#generation;
    const origin = this.#idle();
    const sandbox = await origin.fork();
    if (generation !== this.#generation) return void sandbox.destroy();
    this.#branches.push({ name: `Fork ${++this.#forks}`, sandbox });
    this.#packages.set(sandbox, this.packages);
    this.#runs.set(sandbox, this.#runs.get(origin) ?? []);
    this.#choose(sandbox);
  }

  /** Chooses the branch in which cells run. @param {string} name */
  choose(name) {
    const branch = this.#branches.find((branch) => branch.name === name);
    if (branch && this.#idle()) this.#choose(branch.sandbox);
  }

  /** Ends a fork. @param {string} name */
  close(name) {
    const index = this.#branches.findIndex((branch) => branch.name === name);
    const [first] = this.#branches;
    if (index < 1 || !first || !this.#idle()) return;
    const [closed] = this.#branches.splice(index, 1);
    void closed?.sandbox.destroy();
    this.#choose(closed?.sandbox === this.#sandbox ? first.sandbox : /** @type {Sandbox} */ (this.#sandbox));
  }

  /** Loads packages into the chosen sandbox. @param {string[]} requirements @param {LoadOptions} options */
  async loadPackages(requirements, options) {
    const sandbox = this.#idle();
    const loaded = await sandbox.loadPackages(requirements, options);
    const names = loaded.map(({ name, version }) => `${name} ${version}`);
    this.#packages.set(sandbox, [...(this.#packages.get(sandbox) ?? []), ...names]);
    this.refresh();
    return loaded;
  }

  /** The names and versions of the packages that were loaded by `loadPackages` into the chosen sandbox. */
  get packages() {
    return (this.#sandbox && this.#packages.get(this.#sandbox)) ?? [];
  }

  /** The list of packages, if it is not Pyodide's own. */
  get lockFileUrl() {
    return this.#options.lockFileUrl;
  }

  /** Tells listeners that variables may have changed. */
  refresh() {
    this.#become(this.state);
  }

  /** The chosen sandbox, if no cell runs in it. */
  #idle() {
    if (!this.#sandbox) throw new Error("Python has not started");
    if (this.state !== "ready") throw new Error("a cell is running: stop it first");
    return this.#sandbox;
  }

  /** @param {Sandbox} sandbox */
  #choose(sandbox) {
    this.#sandbox = sandbox;
    this.#started = Promise.resolve(sandbox);
    this.dispatchEvent(new Event("branches"));
    this.#become(this.state);
  }

  /** Sets options of the next sandbox. @param {SandboxOptions} options */
  configure(options) {
    this.#options = { ...this.#options, ...options };
  }

  /** Replaces the sandbox by a new one; only the context is kept. */
  restart() {
    return this.start("restarting");
  }

  /** Ends the sandbox. The browser forgets its variables, too. */
  shutDown() {
    this.#dismiss();
    // What is kept is another tab's if this one could not keep its own.
    if (!this.unkept) this.#ended = this.#ended.then(() => deletePersisted(KEPT)).catch(() => {});
    this.#become("destroyed");
  }

  /** Makes `context` the Python variable `context`, now and after every restart. @param {unknown} context */
  async setContext(context) {
    this.#context = context;
    await Promise.all(this.#branches.map(({ sandbox }) => sandbox.initialize(context)));
  }

  /** Takes the context that came back as the one for later starts. @param {unknown} context */
  adoptContext(context) {
    this.#context = context;
  }

  /**
   * Runs a cell after those before it. Rejects if the sandbox cannot run it.
   * @param {string} code
   * @param {ExecuteOptions & { onStart: (run: number) => void }} options  `run` is the run's number in this session
   * @returns {Promise<CodeExecution>}
   */
  run(code, { onStart, ...options }) {
    const generation = this.#generation;
    const mine = this.#line.then(async () => {
      if (!this.#started || generation !== this.#generation) throw new Error("there is no sandbox; start one");
      const sandbox = await this.#started;
      this.#running++;
      this.#settle();
      try {
        const run = ++this.#lastRun;
        onStart(run);
        const execution = await sandbox.execute(code, options);
        this.#runs.set(sandbox, [...(this.#runs.get(sandbox) ?? []), { id: execution.id, run }]);
        return execution;
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
    await this.#sandbox?.hint(code).catch(() => {}); // an error of the code shows when the cell is run
  }

  /** The running sandbox's counters. */
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
      const sandbox = await this.#open(onProgress);
      /** @type {unknown} */
      let context = this.isResumed ? this.#context : undefined;
      while (context !== this.#context) {
        // The user may choose another context meanwhile.
        context = this.#context;
        await sandbox.initialize(context);
      }
      if (generation !== this.#generation) {
        await sandbox.destroy();
        throw new Error("the sandbox was restarted or shut down");
      }
      this.#sandbox = sandbox;
      this.#branches = [{ name: "Main", sandbox }];
      this.#become("ready");
      return sandbox;
    } catch (error) {
      if (generation === this.#generation) this.#fail(error);
      throw error;
    }
  }

  /** Makes a sandbox that the browser keeps, if it can. @param {SandboxOptions["onProgress"]} onProgress */
  async #open(onProgress) {
    const options = { ...this.#options, onProgress };
    const resumes = this.#resumes;
    this.#resumes = this.isResumed = false;
    this.unkept = "";
    try {
      await this.#ended;
      const isKept = resumes && (await this.isKept());
      if (!resumes) await deletePersisted(KEPT);
      const sandbox = await createSandbox({ ...options, persist: KEPT });
      this.isResumed = isKept;
      return sandbox;
    } catch (error) {
      const { code, message } = /** @type {{ code?: string, message: string }} */ (error);
      if (code === "asset_failed" || code === "boot_failed") throw error;
      const why = code === "persist_in_use" ? "the notebook is open in another tab" : message;
      this.unkept = `Variables are not kept over a reload: ${why}`;
      return createSandbox(options);
    }
  }

  /** Ends the current sandbox; returns the number of the next. */
  #dismiss() {
    const starting = this.#started?.catch(() => {}); // a sandbox that still starts is destroyed then
    this.#ended = Promise.all([starting, ...this.#branches.map(({ sandbox }) => sandbox.destroy())]);
    this.#branches = [];
    this.#sandbox = this.#started = undefined;
    this.#running = this.#forks = 0;
    this.#line = Promise.resolve();
    this.dispatchEvent(new Event("branches"));
    return ++this.#generation;
  }

  /** Shows how far a guest's boot is: the first one's, or a replacement's. @param {Stage} stage */
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

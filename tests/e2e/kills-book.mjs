// The book of tests/e2e/kills.mjs: what pages have told, and what must hold after a kill. It tells each page what to do next.

import { LOOK, PREPARE, drawCell, failure, prepared } from "./kills-model.mjs";

/** @import { Cell, Variables } from "./kills-model.mjs" */
/** A word of a page. @typedef {Record<string, any> & { what: "opened" | "done" | "stored" | "call", visit: number }} Said */
/** A moment at which a page may be killed. @typedef {"opened" | "looked" | "arrived" | "stored" | "ended"} Moment */
/** A host call: how often its function has run, and its name. @typedef {{ runs: number, id: string | undefined }} Call */
/** An execution that a page was told the end of. @typedef {{ execution: number, cell: number, digest: string, visit: number }} Ended */

/** The newest executions that can be replayed, less a few: looks are executions, too, and a lost execution leaves a number. */
const REPLAYED = 20;
/** Executions that the last page replays. */
const MOST_AT_END = 12;

export class Book {
  counts = { cells: 0, calls: 0, again: 0, neverRan: 0, resumed: 0, lost: 0, looks: 0, replays: 0, earlier: 0 };
  /** Faults. @type {string[]} */
  wrong = [];
  /** The page that is open. */
  visit = 0;
  /** True if no page follows this one. */
  isLast = false;
  /** True once the last page has done everything. */
  isOver = false;
  #below;
  /** True once the first page has made the variables. */
  #isPrepared = false;
  /** @type {Map<number, Cell>} */
  #cells = new Map();
  /** Variables after cells, as far as they are known. @type {Map<number, Variables>} */
  #after = new Map([[0, prepared()]]);
  /** The cell whose state the sandbox has. */
  #now = 0;
  /** The newest cell that must not be lost: its state was kept, or it has made a call. */
  #kept = 0;
  /** The newest cell whose state was kept. */
  #storedCell = 0;
  #lastCell = 0;
  #lastExecution = 0;
  /** @type {Map<string, Call>} */
  #calls = new Map();
  /** Keys of calls that are answered for good. @type {Set<string>} */
  #answered = new Set();
  /** Keys of calls that the page's journal has without an answer. @type {Set<string>} */
  #waiting = new Set();
  /** Keys of calls whose cells were not seen in a state yet. @type {Set<string>} */
  #unseen = new Set();
  /** @type {Ended[]} */
  #ended = [];
  /** The purpose of the call of the sandbox that is under way. @type {{ cell?: number, replays?: Ended, isLook?: boolean }} */
  #asked = {};
  /** Replays that the page still has to do. @type {Ended[]} */
  #toReplay = [];

  /** @param {(limit: number) => number} below  draws a whole number */
  constructor(below) {
    this.#below = below;
  }

  /** Takes a word of a page. @param {Said} said @returns {{ answer: object, moment?: Moment }} */
  hear(said) {
    if (said.what === "call") return { answer: this.#call(said), moment: "arrived" };
    if (said.what === "stored") return { answer: {}, moment: this.#stored(said) };
    if (said.visit !== this.visit) return { answer: {} }; // a page that is dead has nothing to do
    if (said.what === "opened") return { answer: this.#opened(said.pending), moment: "opened" };
    return this.#done(said);
  }

  /** @param {string} what */
  #fault(what) {
    this.wrong.push(`page ${this.visit}: ${what}`);
  }

  /** A host function runs: this is its effect. @param {Said} said */
  #call({ key, id }) {
    const call = this.#calls.get(key) ?? { runs: 0, id };
    this.#calls.set(key, call);
    this.#unseen.add(key);
    this.counts.calls += 1;
    if (this.#answered.has(key)) this.#fault(`the answered call ${key} is made again`);
    else if (call.runs > 0 && !this.#waiting.delete(key)) this.#fault(`the call ${key} is made twice`);
    else if (call.runs > 0) this.counts.again += 1;
    if (call.id !== id) this.#fault(`the call ${key} is named ${id}, and was named ${call.id}`);
    call.runs += 1;
    const cell = Number.parseInt(key);
    this.#kept = Math.max(this.#kept, cell);
    // Code goes on when an answer is written. So the calls before this one are answered.
    const all = this.#cells.get(cell)?.calls ?? [];
    const isPart = key.includes("b");
    for (const other of all.slice(0, all.indexOf(key))) if (!isPart || !other.includes("b")) this.#answered.add(other);
    const error = failure(key);
    return error ? { error } : { token: `${key}#${call.runs}` };
  }

  /** @param {Said} said @returns {Moment} */
  #stored({ stage, execution, reason, visit }) {
    if (stage === "unkept") this.#fault(`execution ${execution} is not kept: ${reason}`);
    const ended = this.#ended.find((ended) => ended.execution === execution && ended.visit === visit);
    if (ended) this.#keeps(ended.cell);
    return "stored";
  }

  /** The state after a cell is kept. @param {number} cell */
  #keeps(cell) {
    this.#storedCell = Math.max(this.#storedCell, cell);
    this.#kept = Math.max(this.#kept, cell);
  }

  /** @param {any} pending */
  #opened(pending) {
    this.#waiting.clear();
    this.#toReplay = [];
    if (this.visit === 1) return { method: "initialize", given: ["a context"] };
    const number = Number(/^cell = (\d+)$/m.exec(pending?.code ?? "")?.[1] ?? 0);
    const cell = this.#cells.get(number);
    if (pending && (!cell || cell.code !== pending.code)) {
      // A look that was killed makes no call, so it is never pending.
      this.#fault(`another execution is pending: ${pending.code}`);
    }
    for (const { name, args } of pending?.calls ?? []) {
      const key = name === "pay" ? args.join(".") : String(args[0]);
      if (this.#answered.has(key)) this.#fault(`the answered call ${key} waits again`);
      if (!this.#calls.has(key)) this.counts.neverRan += 1;
      this.#waiting.add(key);
    }
    for (const key of this.#calls.keys()) if (!this.#waiting.has(key)) this.#answered.add(key);
    if (!cell) return this.#look();
    if (number <= this.#storedCell) this.#fault(`cell ${number} is pending, and its state was kept`);
    // It may have ended, with its state not kept yet. What the world said after its last call is in no journal, so it may be another now.
    this.#ended = this.#ended.filter((ended) => ended.cell !== number);
    this.counts.resumed += 1;
    this.#asked = { cell: number };
    return { method: "resume", given: [] };
  }

  /** @param {Said} said @returns {{ answer: object, moment?: Moment }} */
  #done({ method, value, error }) {
    const { cell, replays, isLook } = this.#asked;
    this.#asked = {};
    if (error) {
      this.#fault(`${method} of ${cell ?? replays?.execution}: ${error}`);
      return { answer: this.#look() };
    }
    if (method === "initialize") return { answer: this.#execute(PREPARE, { cell: 0 }) };
    if (method === "checkpoint") {
      this.#keeps(this.#now);
      return { answer: this.#next() };
    }
    const { execution = value, difference } = value;
    const digest = /^[0-9a-f]{64}$/m.exec(execution.stdout)?.[0];
    if (!digest || (execution.outcome === "error" && !/on purpose/.test(execution.error)))
      this.#fault(`${method} of cell ${cell}: ${execution.outcome}, ${execution.error}`);
    if (replays) {
      this.counts.replays += 1;
      if (replays.visit !== this.visit) this.counts.earlier += 1;
      if (digest !== replays.digest || difference !== null)
        this.#fault(`the replay of execution ${replays.execution} is another: ${difference}`);
      return { answer: this.#next() };
    }
    if (execution.state.status !== "kept") this.#fault(`${method} of cell ${cell}: ${JSON.stringify(execution.state)}`);
    this.#lastExecution = execution.id;
    if (isLook) {
      this.#compare(execution.stdout, digest ?? "");
      return { answer: this.#next(), moment: "looked" };
    }
    this.#now = Number(cell);
    this.#ended.push({ execution: execution.id, cell: this.#now, digest: digest ?? "", visit: this.visit });
    // What a page has resumed is looked at first: its code may have gone another way.
    return { answer: method === "resume" || cell === 0 ? this.#look() : this.#next(), moment: "ended" };
  }

  /** Compares all variables with the model. @param {string} stdout @param {string} digest */
  #compare(stdout, digest) {
    this.counts.looks += 1;
    const seen = JSON.parse(stdout.split("\n")[0] ?? "");
    const found = Number(seen.cell);
    if (found < this.#kept) this.#fault(`cell ${this.#kept} is lost: the state is that after cell ${found}`);
    const expected = this.#variablesAfter(found);
    for (const [name, value] of Object.entries(expected)) {
      const [is, should] = [JSON.stringify(seen[name]), JSON.stringify(value)];
      if (is !== should) this.#fault(`after cell ${found}, ${name} is ${is}, and should be ${should}`);
    }
    for (const ended of this.#ended.filter(({ cell }) => cell === found)) {
      if (ended.digest !== digest) this.#fault(`after cell ${found}, the variables' hash is another than it was`);
    }
    this.counts.lost += this.#ended.filter(({ cell }) => cell > found).length;
    this.#ended = this.#ended.filter(({ cell }) => cell <= found).slice(-2 * REPLAYED);
    for (const key of this.#unseen) {
      const number = Number.parseInt(key);
      if (!this.#after.has(number)) this.#fault(`the effect of call ${key} is in no state`);
    }
    this.#unseen.clear();
    this.#now = found;
    const known = this.#ended.filter(({ execution }) => execution > this.#lastExecution - REPLAYED);
    if (this.isLast) this.#toReplay = known.slice(-MOST_AT_END);
    else if (known.length > 0) this.#toReplay = [known[this.#below(known.length)] ?? known[0]];
  }

  /** The variables after a cell, by the model. @param {number} number @returns {Variables} */
  #variablesAfter(number) {
    /** @type {Cell[]} */
    const line = [];
    for (let at = number; !this.#after.has(at);) {
      const cell = this.#cells.get(at);
      if (!cell) throw new Error(`there is no cell ${at}`);
      line.push(cell);
      at = cell.before;
    }
    for (const cell of line.reverse()) {
      const variables = structuredClone(/** @type {Variables} */ (this.#after.get(cell.before)));
      const answers = cell.calls.map((key) => failure(key) ?? `${key}#${this.#calls.get(key)?.runs}`);
      cell.then(variables, answers);
      this.#after.set(cell.number, variables);
    }
    return /** @type {Variables} */ (this.#after.get(number));
  }

  #next() {
    const replays = this.#toReplay.pop();
    if (replays) {
      this.#asked = { replays };
      return { method: "replay", given: [replays.execution] };
    }
    if (this.visit === 1 && !this.#isPrepared) {
      this.#isPrepared = true;
      return { method: "checkpoint", given: [] };
    }
    if (this.isLast || this.visit === 1) {
      this.isOver = true;
      return {};
    }
    const kind = this.#below(10);
    if (kind === 0) return this.#look();
    if (kind < 3) return { method: "checkpoint", given: [] };
    const cell = drawCell(++this.#lastCell, this.#now, this.#below);
    this.#cells.set(cell.number, cell);
    this.counts.cells += 1;
    return this.#execute(cell.code, { cell: cell.number });
  }

  #look() {
    return this.#execute(LOOK, { isLook: true });
  }

  /** @param {string} code @param {{ cell?: number, isLook?: boolean }} asked */
  #execute(code, asked) {
    this.#asked = asked;
    return { method: "execute", given: [code] };
  }
}

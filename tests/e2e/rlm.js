// `runRlm` in a page. tests/e2e/rlm.mjs runs each of `TESTS` and reports the problems that they return. The model is
// tests/e2e/rlm-server.mjs.

import { countReferences, countTimers } from "./leftovers.js";
import { randomness, unequal, until } from "./tools.js";

/** @import { RlmEvent, RlmOptions, RlmRun } from "../../pkg/sandglass.js" */

const page = /** @type {any} */ (globalThis);
const { setTimeout: wait } = globalThis;
const timers = countTimers();
const { fromJsonLines, replayRlm, runRlm, toJsonLines } = /** @type {typeof import("../../pyodide-glue/rlm.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/rlm.js"))
);

const supervisor = await (
  await import(/** @type {any} */ ("/pkg/sandglass.js"))
).default({ module_or_path: "/dist/supervisor.wasm" });

const KEY = "key-that-nobody-sees-0123456789";
let server = "";

/** @param {string} url */
export function connect(url) {
  server = url;
}

// ---- tools ----

/** An endpoint whose answers come from this policy. @param {string} model @param {object} [more] */
const endpoint = (model, more) => ({ baseUrl: `${server}/v1/`, apiKey: KEY, model, ...more });

/** Runs, and checks the rules that hold for every run. @param {RlmOptions} options @returns {Promise<RlmRun & { live: RlmEvent[], problems: string[] }>} */
async function run(options) {
  /** @type {RlmEvent[]} */
  const live = [];
  const result = await runRlm({
    ...options,
    onEvent: (event) => {
      live.push(event);
      options.onEvent?.(event);
    },
  });
  return { ...result, live, problems: [...wellFormed(result, live), ...(await nothingLeft())] };
}

/** Runs with these replies of the model, one for each turn. @param {string[]} replies @param {Partial<RlmOptions>} [options] */
const script = (replies, options) =>
  run({ task: JSON.stringify(replies), model: endpoint("script", { maxRetries: 1 }), ...options });

/** @param {string} code */
const cell = (code) => `\`\`\`repl\n${code}\n\`\`\``;

/** Checks the rules of a trajectory. @param {RlmRun} result @param {RlmEvent[]} live */
function wellFormed(result, live) {
  const { events } = result;
  const problems = [];
  const kept = live.filter(({ type }) => type !== "text" && type !== "output");
  if (JSON.stringify(kept) !== JSON.stringify(events)) problems.push("events and onEvent differ");
  if (JSON.stringify(live).includes(KEY)) problems.push("the key is in an event");
  if (events[0]?.type !== "runStarted" && result.outcome === "answered")
    problems.push(`it begins with ${events[0]?.type}`);
  if (events.at(-1)?.type !== "runEnded" || events.at(-1)?.run !== "0")
    problems.push("it does not end with the first run's end");
  const ids = new Set(events.map(({ run }) => run));
  for (const id of ids) {
    const own = events.filter(({ run }) => run === id);
    const ends = own.filter(({ type }) => type === "runEnded").length;
    if (ends !== 1 || own.at(-1)?.type !== "runEnded")
      problems.push(`run ${id} ends ${ends} times, last ${own.at(-1)?.type}`);
    const started = own.filter(({ type }) => type === "callStarted").length;
    const ended = own.filter(({ type }) => type === "callEnded").length;
    if (started !== ended) problems.push(`run ${id}: ${started} calls began, ${ended} ended`);
  }
  for (const [index, { time }] of events.entries())
    if (index > 0 && time < (events[index - 1]?.time ?? 0)) problems.push(`time goes back at event ${index}`);
  return problems;
}

/** Waits until no sandbox, timer or connection is left. Returns the remains as problems. */
async function nothingLeft() {
  const count = async () => ({
    frames: document.querySelectorAll("iframe").length,
    timers: timers().length,
    connections: (await log()).open,
  });
  const left = async () => Object.entries(await count()).filter(([, number]) => number > 0);
  // A spare may begin to start at any moment, with a timer of its own. So the last count is told, and not another one.
  /** @type {[string, number][]} */
  let last = [];
  const isOver = async () => (last = await left()).length === 0;
  await until(isOver, "nothing is left", 60_000).catch(() => {});
  return last.map(([what, number]) => `${number} ${what} are left: ${timers()}`);
}

/** @param {object[]} faults */
const order = (faults) => fetch(`${server}/faults`, { method: "POST", body: JSON.stringify(faults) });
const log = async () => (await fetch(`${server}/log`)).json();

/** @param {RlmRun} result @param {unknown} answer @param {string} [outcome] */
const ended = (result, answer, outcome = "answered") => [
  ...unequal(result.outcome, outcome, "outcome"),
  ...unequal(result.answer, answer, "answer"),
  ...(outcome === "answered" && result.error ? [result.error] : []),
];

// ---- corpora ----

const COLOURS = ["teal", "amber", "ochre", "umber", "mauve"];
const TOPICS = ["rivers", "harbours", "lanterns", "orchards", "glaciers"];

/** At least `size` characters of lines `N colour record value`, and the sum of the teal lines' values. @param {number} seed @param {number} size */
function records(seed, size) {
  const random = randomness(seed);
  const lines = [];
  let [length, total] = [0, 0];
  while (length < size) {
    const colour = COLOURS[Math.floor(random() * COLOURS.length)] ?? "";
    const value = Math.floor(random() * 1000);
    if (colour === "teal") total += value;
    const line = `${lines.length} ${colour} record ${value} of the ledger`;
    length += line.length + 1;
    lines.push(line);
  }
  return { text: lines.join("\n"), total };
}

/** Prose of `tokens` tokens, four characters each, with one needle in it. @param {number} seed @param {number} tokens */
function haystack(seed, tokens) {
  const random = randomness(seed);
  const code = String(10_000 + Math.floor(random() * 90_000));
  const lines = topics(random, tokens * 4).lines;
  lines.splice(Math.floor(random() * lines.length), 0, `The secret code of the harbour is ${code}, they say.`);
  return { text: lines.join("\n"), code };
}

/** @param {() => number} random @param {number} size */
function topics(random, size) {
  const lines = [];
  let [length, rivers] = [0, 0];
  while (length < size) {
    const topic = TOPICS[Math.floor(random() * TOPICS.length)] ?? "";
    if (topic === "rivers") rivers += 1;
    const line = `Note ${lines.length}: something is said about ${topic} here, number ${Math.floor(random() * 1e6)}.`;
    length += line.length + 1;
    lines.push(line);
  }
  return { lines, rivers };
}

// ---- the tests ----

/** @type {Record<string, () => Promise<string[]>>} */
const RECURSION = {
  "three levels add up 10 MB, whatever the endpoint does": async () => {
    const { text, total } = records(7, 10_000_000);
    await order([
      { kind: "status", status: 429, headers: { "Retry-After": "0.2" }, times: 2 },
      { kind: "status", status: 500, times: 2, match: "level 1" },
      { kind: "cut", match: "level 1" },
      { kind: "invalid JSON", match: "level 2" },
      { kind: "empty choices", match: "level 2" },
      { kind: "reset", match: "level 2" },
      { kind: "error event", match: "level 2" },
      { kind: "status", status: 503, body: "<html>no JSON</html>", match: "How many lines" },
      { kind: "slow", wait: 500, match: "How many lines", times: 2 },
    ]);
    const result = await run({
      task: "level 0, parts 3: add up the teal values",
      context: text,
      model: endpoint("tree"),
      maxDepth: 2,
      maxConcurrentRuns: 2,
    });
    const { faults } = await log();
    const runs = result.events.filter(({ type }) => type === "runStarted");
    const retries = result.events.filter(({ type }) => type === "retry");
    return [
      ...ended(result, String(total)),
      ...result.problems,
      ...unequal(runs.length, 1 + 3 + 6, "runs"),
      ...unequal(
        runs
          .map(({ depth }) => depth)
          .sort()
          .join(""),
        "0111222222",
        "depths",
      ),
      ...unequal(faults, 12, "faults"),
      ...unequal(retries.length, 10, "retries"),
      ...unequal(result.usage.calls, 2 + 3 * 3 + 6 * 4, "calls"),
    ];
  },

  "a child below the deepest level is a sub-model": async () => {
    const code = cell("print(rlm_query('What?', 'a small context'))\nFINAL(rlm_query('Which?', ['a', 'b']))");
    const result = await script([code], { maxDepth: 0, context: "x" });
    return [...ended(result, 'echo: Which?\n\n["a","b"]'), ...result.problems];
  },

  "a context that does not fit is told": async () => {
    const code = cell("try:\n    rlm_query('What?')\nexcept HostCallError as error:\n    FINAL(str(error))");
    const result = await script([code], { maxDepth: 0, context: "x".repeat(5_000_000) });
    return [
      ...(/maxDepth 0.*does not fit/.test(result.answer) ? [] : [`answer: ${result.answer}`]),
      ...result.problems,
    ];
  },

  "children have what their parents give them": async () => {
    const child = JSON.stringify([cell("FINAL(f'{type(context).__name__} {context!r}')")]);
    const code = [
      `task = ${JSON.stringify(child)}`,
      "FINAL([rlm_query(task), rlm_query(task, {'a': [1, 2.5, None]}), *rlm_query_batched([task] * 3, [1, 'b', b'c'])])",
    ].join("\n");
    const result = await script([cell(code)], { context: ["whole"], answerSchema: { type: "array" } });
    const expected = ["list ['whole']", "dict {'a': [1, 2.5, None]}", "int 1", "str 'b'", "bytes b'c'"];
    return [...ended(result, expected), ...result.problems];
  },
};

/** @type {Record<string, () => Promise<string[]>>} */
const CORPORA = {};
for (let power = 13; power <= 20; power += 1) {
  CORPORA[`a needle in 2^${power} tokens is found`] = async () => {
    const { text, code } = haystack(power, 2 ** power);
    const result = await run({
      task: "Find the secret code of the harbour.",
      context: text,
      model: endpoint("needle"),
    });
    return [...ended(result, code), ...result.problems];
  };
  CORPORA[`all lines of 2^${power} tokens are counted`] = async () => {
    const { lines, rivers } = topics(randomness(100 + power), 4 * 2 ** power);
    const result = await run({
      task: "How many notes are about rivers?",
      context: lines.join("\n"),
      model: endpoint("aggregate"),
      answerSchema: { type: "integer" },
    });
    return [...ended(result, rivers), ...result.problems];
  };
}

/** @type {Record<string, () => Promise<string[]>>} */
const ANSWERS = {
  "an answer of the wrong type is asked for again": async () => {
    const answerSchema = {
      type: "object",
      required: ["name", "grains"],
      additionalProperties: false,
      properties: { name: { type: "string" }, grains: { type: "array", items: { type: "integer" } } },
    };
    const result = await run({ task: "Name it.", model: endpoint("typed"), answerSchema });
    const rejected = result.events.filter(({ type }) => type === "answerRejected").length;
    return [
      ...ended(result, { grains: [1, 2, 3], name: "sand" }),
      ...unequal(rejected, 1, "rejections"),
      ...result.problems,
    ];
  },

  "every way to declare an answer works": async () => {
    const problems = [];
    for (const [reply, answer] of /** @type {[string, unknown][]} */ ([
      [cell("FINAL(f'{6 * 7}')"), "42"],
      [cell("x = [1, 2]\nFINAL_VAR('x')"), "[1,2]"],
      [cell("SUBMIT('a')\nprint('not reached')"), "a"],
      [cell("answer['content'] = 'b'\nanswer['ready'] = True"), "b"],
      [`${cell("y = 'c' * 3")}\nFINAL_VAR(y)`, "ccc"],
      ["It is this.\nFINAL(d e)", "d e"],
      [`${cell("z = 'f'")}\nFINAL(z)`, "f"],
      [`${cell("z = 1")}\nmore\n${cell("FINAL('é ✓')")}\n${cell("print('not run')")}`, "é ✓"],
    ])) {
      const result = await script([reply]);
      problems.push(...ended(result, answer), ...result.problems);
    }
    return problems;
  },

  "ints of any size are exact": async () => {
    const code = "import math\nx = [math.factorial(30), -(2**64), 2**53 + 1, 7]";
    const text = await script([cell(`${code}\nFINAL(x[0])`)]);
    const answerSchema = { type: "array", items: { type: "integer" } };
    const typed = await script([cell(`${code}\nFINAL(x)`)], { answerSchema });
    const said = await script(["I say it.", "[9007199254740993]"], { answerSchema, maxIterations: 1 });
    const shown = (/** @type {unknown} */ list) =>
      Array.isArray(list) ? list.map((item) => `${typeof item} ${item}`).join() : `${list}`;
    return [
      ...ended(text, "265252859812191058636308480000000"),
      ...unequal(
        shown(typed.answer),
        "bigint 265252859812191058636308480000000,bigint -18446744073709551616,bigint 9007199254740993,number 7",
        "with a schema",
      ),
      ...unequal(shown(said.answer), "bigint 9007199254740993", "in last words"),
      ...[text, typed, said].flatMap(({ problems }) => problems),
    ];
  },

  "half a character is told and not changed": async () => {
    const asks = "try: llm_query('a\\ud800')\nexcept HostCallError as error: print(error)";
    const result = await script([
      cell(`${asks}\nFINAL('b\\ud801')`),
      cell("FINAL(['\\ud802'])"),
      cell("FINAL('\\ud83d\\ude00')"),
    ]);
    const printed = result.live.flatMap((event) => (event.type === "output" ? [event.text] : [])).join("");
    const rejected = result.events.flatMap((event) => (event.type === "answerRejected" ? [event.problems] : []));
    // Python sees the code point that the model wrote.
    const replied = await run({ task: "t", model: async () => cell("FINAL(str(ord('\ud803')))") });
    const refused = await runRlm({ task: "\ud804", model: async () => "" }).catch((error) => error.message);
    return [
      ...ended(result, "😀"),
      ...(/the prompt holds the lone surrogate U\+D800/.test(printed) ? [] : [printed]),
      ...(/U\+D801[^]*U\+D802/.test(JSON.stringify(rejected)) ? [] : [JSON.stringify(rejected)]),
      ...ended(replied, `${0xd803}`),
      ...(/^task: .*U\+D804/.test(refused) ? [] : [`${refused}`]),
      ...result.problems,
      ...replied.problems,
    ];
  },

  "a name in prose is no answer before there is a variable": async () => {
    const plan = "I look at it, then call\nFINAL(result)\nonce done.";
    const empty = "FINAL(answer)";
    const result = await script([plan, empty, `${cell("result = 6 * 7")}\n${plan}`]);
    return [...ended(result, "42"), ...unequal(result.iterations, 3, "turns"), ...result.problems];
  },

  "what code does is shown to the model": async () => {
    /** @type {string[]} */
    const heard = [];
    const replies = [
      cell("print('one')\n2"),
      `${cell("raise ValueError('three')")}${"\n"}${cell("print('never')")}`,
      "no code here",
      "```json\n{}\n```",
      "FINAL_VAR(missing)",
      cell("while True: pass"),
      cell("FINAL('done')"),
    ];
    const result = await run({
      task: "t",
      model: async (messages) => {
        heard.push(messages.at(-1)?.content ?? "");
        return { text: replies[heard.length - 1] ?? "", usage: { inputTokens: 10, outputTokens: 5, cost: 0.5 } };
      },
      sandbox: { timeout: 5_000 },
      budget: { maxCalls: 30, maxCost: 100 },
    });
    const expected = [
      /Task:\nt\n[^]*Turn 1 of 20\. Left for everything: 30 model calls, cost 100/,
      /Output:\none\nResult: 2\n\nTurn 2 of 20\. Left for everything: 29 model calls, cost 99\.5/,
      /block 1[^]*ValueError: three[^]*Block 2 was not run/,
      /no block of code/,
      /none that begins with ```repl/,
      /Variable 'missing' not found/,
      /ran for too long/,
    ];
    const problems = expected.flatMap((pattern, turn) =>
      pattern.test(heard[turn] ?? "") ? [] : [`turn ${turn + 1}: ${heard[turn]}`],
    );
    return [...ended(result, "done"), ...problems, ...unequal(result.usage.cost, 3.5, "cost"), ...result.problems];
  },

  "the last turns are told, and what is said after them is taken": async () => {
    const result = await script([cell("1"), cell("2"), "It may be 7."], { maxIterations: 2 });
    const none = await script([cell("1"), "nothing"], { maxIterations: 1, answerSchema: { type: "integer" } });
    const typed = await script([cell("1"), "```json\n7\n```"], { maxIterations: 1, answerSchema: { type: "integer" } });
    const found = [];
    for (const last of ["FINAL_VAR(x)", cell("FINAL(x)"), cell("FINAL(f'{x}')"), "FINAL(x)"])
      found.push(await script([cell("x = 8"), last], { maxIterations: 1 }));
    return [
      ...found.flatMap((result) => [...ended(result, "8", "exhausted"), ...result.problems]),
      ...ended(result, "It may be 7.", "exhausted"),
      ...ended(none, undefined, "exhausted"),
      ...ended(typed, 7, "exhausted"),
      ...[result, none, typed].flatMap(({ problems }) => problems),
    ];
  },

  "a long history is shortened and the run goes on": async () => {
    const replies = Array.from({ length: 12 }, (_, turn) => cell(`print('${turn} ' * 4000)\nv${turn} = ${turn}`));
    const result = await script([...replies, cell("FINAL(sum([v0, v5, v11]))")], { maxPromptTokens: 12_000 });
    const sizes = result.events.flatMap((event) => (event.type === "turnStarted" ? [event.promptTokens] : []));
    const compacted = result.events.some(({ type }) => type === "historyCompacted");
    const most = Math.max(...sizes);
    return [
      ...ended(result, "16"),
      ...(most <= 12_000 && compacted ? [] : [`${most} tokens, compacted: ${compacted}`]),
      ...result.problems,
    ];
  },
};

/**
 * Problems of a run whose first call begins ahead, and is in vain.
 * @param {string} beginning the part of the reply that is heard before the call begins
 * @param {string} rest the part that is heard after it
 * @param {string} whole the reply, whose code asks for the second
 */
async function inVain(beginning, rest, whole) {
  const problems = [];
  for (const pause of [1_000, 4_000, 16_000, 64_000]) {
    let asked = 0;
    const result = await run({
      task: "t",
      aheadCalls: true,
      model: async (_, { onText }) => {
        onText(beginning);
        await new Promise((resolve) => setTimeout(resolve, pause));
        onText(rest);
        return whole;
      },
      subModel: (messages) => ({ text: `<${(asked++, messages.at(-1)?.content)}>`, usage: { inputTokens: 7 } }),
    });
    problems.push(...ended(result, "<the second>"), ...result.problems);
    const calls = result.events.filter((event) => event.type === "callEnded");
    problems.push(...unequal(calls.length, asked, "queries"), ...unequal(result.usage.calls, 1 + asked, "calls"));
    if (asked < 2) continue;
    const told = calls.map(
      (event) => event.type === "callEnded" && [event.wasted ?? false, event.answer ?? null, event.usage?.inputTokens],
    );
    // The next code could have made the first call as well. So it ends last.
    const expected = [
      [false, "<the second>", 7],
      [true, null, 7],
    ];
    problems.push(...unequal(told, expected, "told"));
    const again = await run({ task: "t", model: replayRlm(result.events) });
    return [...problems, ...unequal(again.answer, "<the second>", "replayed")];
  }
  return [...problems, "it never was ready"];
}

/** @type {Record<string, () => Promise<string[]>>} */
const MODELS = {
  "replies come as streams and in one piece": async () => {
    const replies = [cell("FINAL(llm_query('hello'))")];
    const streamed = await script(replies);
    const text = streamed.live.flatMap((event) => (event.type === "text" ? [event.text] : [])).join("");
    const whole = await script(replies, {
      model: endpoint("script", { stream: false, price: { input: 1e6, output: 0 } }),
    });
    const { keys } = await log();
    return [
      ...ended(streamed, "echo: hello"),
      ...ended(whole, "echo: hello"),
      ...unequal(text, replies[0], "streamed text"),
      ...(whole.usage.cost === whole.usage.inputTokens && whole.usage.cost > 0 ? [] : [JSON.stringify(whole.usage)]),
      ...unequal(keys, [`Bearer ${KEY}`], "keys"),
      ...streamed.problems,
      ...whole.problems,
    ];
  },

  "broken replies in one piece are asked for again": async () => {
    await order([{ kind: "empty choices" }, { kind: "invalid JSON" }]);
    const result = await script([cell("FINAL('x')")], { model: endpoint("script", { stream: false }) });
    const reasons = result.events.flatMap((event) => (event.type === "retry" ? [event.reason] : []));
    return [...ended(result, "x"), ...unequal(reasons.length, 2, "retries"), ...result.problems];
  },

  "an endpoint that goes on failing fails the run": async () => {
    await order([{ kind: "status", status: 500, times: 3 }]);
    const busy = await script([cell("FINAL(1)")]);
    await order([{ kind: "status", status: 401, body: JSON.stringify({ error: { message: `Wrong key: ${KEY}` } }) }]);
    const refused = await script([cell("FINAL(1)")], { model: endpoint("script") });
    await order([{ kind: "hang", times: 5 }]);
    const hanging = await script([cell("FINAL(1)")], { model: endpoint("script", { timeout: 200, maxRetries: 1 }) });
    await order([]);
    const gone = await script(["x"], { model: { baseUrl: "http://127.0.0.1:9/v1", model: "x", maxRetries: 0 } });
    return [
      ...[busy, refused, hanging, gone].flatMap((result) => [
        ...ended(result, undefined, "failed"),
        ...result.problems,
      ]),
      ...(/500: ordered \(2 attempts\)/.test(busy.error ?? "") ? [] : [`${busy.error}`]),
      ...(/401: Wrong key: \[key\]$/.test(refused.error ?? "") ? [] : [`${refused.error}`]),
      ...(/within 200 ms/.test(hanging.error ?? "") ? [] : [`${hanging.error}`]),
      ...(/cannot be reached/.test(gone.error ?? "") ? [] : [`${gone.error}`]),
    ];
  },

  "a failed query is Python's to handle": async () => {
    await order([{ kind: "status", status: 400, match: '"content":"bad prompt"' }]);
    const code =
      "for ask in (lambda: llm_query('bad prompt'), lambda: llm_query('x', model='dear')):\n" +
      "    try:\n        ask()\n    except HostCallError as error:\n        print(error)\nFINAL(llm_query('y', model='script'))";
    const result = await script([cell(code)]);
    const printed = result.live.flatMap((event) => (event.type === "output" ? [event.text] : [])).join("");
    return [
      ...ended(result, "echo: y"),
      ...(/400: ordered[^]*no model dear; there are: script/.test(printed) ? [] : [printed]),
      ...result.problems,
    ];
  },

  "functions answer as well as endpoints": async () => {
    /** @type {unknown[]} */
    const asked = [];
    const result = await run({
      task: "t",
      context: { a: 1 },
      model: (messages, info) => {
        const { run, depth, purpose, call, model } = info;
        asked.push([run, depth, purpose, call, model ?? null, info.signal instanceof AbortSignal]);
        info.onText("live");
        if (depth === 1) return cell("FINAL(llm_query('inner'))");
        return cell("FINAL([llm_query('outer', model='m'), rlm_query('sub', 5)])");
      },
      subModel: async (messages, { onText, run, depth, purpose, call, model }) => {
        asked.push([run, depth, purpose, call, model ?? null]);
        if (purpose === "turn") return cell("FINAL(llm_query('inner') + str(context))");
        return { text: `<${messages.at(-1)?.content}>`, usage: { inputTokens: 1 } };
      },
      answerSchema: { type: "array", prefixItems: [{ const: "<outer>" }, { const: "<inner>5" }] },
    });
    return [
      ...ended(result, ["<outer>", "<inner>5"]),
      ...unequal(
        asked,
        [
          ["0", 0, "turn", 1, null, true],
          ["0", 0, "query", 1, "m"],
          ["0.0", 1, "turn", 1, null],
          ["0.0", 1, "query", 1, null],
        ],
        "asked",
      ),
      ...unequal(result.live.filter(({ type }) => type === "text").length, 1, "texts"),
      ...result.problems,
    ];
  },

  "code runs while the model writes it": async () => {
    const code = "import array\nx = sum(range(10_000_000))\nprint(x)\nFINAL(llm_query(str(x)))";
    const reply = `${cell(code)}\nThat should do.\n`;
    const problems = [];
    // Milliseconds for which the model goes on writing.
    for (const pause of [1_000, 4_000, 16_000, 64_000]) {
      let [asked, saidAt, endedAt, took] = [0, 0, 0, 0];
      const result = await run({
        task: "t",
        model: async (_, { onText }) => {
          for (const piece of reply.match(/[^]{1,7}/g) ?? []) {
            onText(piece);
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
          await new Promise((resolve) => setTimeout(resolve, pause));
          if (asked > 0) problems.push("a query of code that nobody has asked for");
          saidAt = performance.now();
          return reply;
        },
        subModel: (messages) => `<${(asked++, messages.at(-1)?.content)}>`,
        onEvent: (event) => {
          if (event.type !== "executionEnded") return;
          [endedAt, took] = [performance.now(), event.execution.duration];
        },
      });
      problems.push(...ended(result, "<49999995000000>"), ...unequal(asked, 1, "queries"), ...result.problems);
      if (endedAt - saidAt < took / 2) return problems;
    }
    return [...problems, "it never was ready"];
  },

  "the model is asked while its sandbox starts, if the context is a text": async () => {
    const problems = [];
    // This sandbox never starts in time.
    const sandbox = { bootTimeout: 1, spares: 0 };
    for (const [context, questions] of /** @type {[unknown, number][]} */ ([
      ["text", 1],
      [null, 1],
      [{ a: 1 }, 0],
      ["\u{1f600}", 0], // a guest counts its characters
    ])) {
      let asked = 0;
      const model = () => (asked++, cell("FINAL('x')"));
      const result = await run({ task: "t", context, model, sandbox });
      problems.push(...ended(result, undefined, "failed"), ...unequal(asked, questions, `asked about ${context}`));
    }
    // The facts are those that a guest tells.
    const facts = async (/** @type {unknown[]} */ contexts) => {
      const { events } = await run({ task: "t", contexts, model: () => cell("FINAL('x')") });
      return events[0]?.type === "runStarted" ? events[0].contexts.slice(0, 2) : events[0];
    };
    const text = "long\u00e9\t\n".repeat(200);
    for (const first of ["", "'short\"", text])
      problems.push(...unequal(await facts([first, null]), await facts([first, null, 1]), "facts"));
    return problems;
  },

  "calls begin while the model writes their code": async () => {
    const code = "x = llm_query_batched([f'part {n}' for n in range(3)])\nprint(x)\nFINAL(x[2])";
    const reply = `${cell(code)}\nThat should do.\n`;
    const begun = (/** @type {RlmRun} */ { events }) =>
      events.filter((event) => event.type === "callStarted" && event.ahead);
    const wasted = (/** @type {RlmRun} */ { events }) =>
      events.filter((event) => event.type === "callEnded" && event.wasted);
    const problems = [];
    // Milliseconds for which the model goes on writing. The first call of a model that writes little is not always early enough.
    for (const pause of [1_000, 4_000, 16_000, 64_000]) {
      let [asked, early] = [0, 0];
      /** @type {Partial<RlmOptions>} */
      const options = {
        model: async (_, { onText }) => {
          for (const piece of reply.match(/[^]{1,7}/g) ?? []) {
            onText(piece);
            await new Promise((resolve) => setTimeout(resolve, 10));
          }
          await new Promise((resolve) => setTimeout(resolve, pause));
          early = asked;
          return reply;
        },
        subModel: (messages) => `<${(asked++, messages.at(-1)?.content)}>`,
      };
      const result = await run({ task: "t", aheadCalls: true, ...options });
      problems.push(...ended(result, "<part 2>"), ...unequal(asked, 3, "queries"), ...result.problems);
      problems.push(...unequal(result.usage.calls, 4, "calls"), ...unequal(wasted(result).length, 0, "wasted"));
      problems.push(...unequal(begun(result).length, early, "calls that began ahead"));
      if (early < 3) continue;
      // Off by default.
      const other = await run({ task: "t", ...options });
      return [
        ...problems,
        ...ended(other, "<part 2>"),
        ...unequal(begun(other).length + early, 3, "by default, early"),
      ];
    }
    return [...problems, "it never was ready"];
  },

  "calls in vain are told and paid, and never answer other code": async () => {
    const heard = "```repl\nx = llm_query('the first')\nprint(x)\n";
    const second = cell("x = llm_query('the second')\nFINAL(x)");
    const thoughts = `${heard}\`\`\`\nNo.\n</think>\n`;
    const problems = [];
    // The reply turns out to be another one than was heard, or what was heard turns out to be thoughts.
    for (const [beginning, rest, whole] of [
      [heard, "", second],
      [thoughts.slice(0, -10), thoughts.slice(-10) + second, thoughts + second],
    ])
      problems.push(...(await inVain(beginning, rest, whole)));
    return problems;
  },

  "calls of code that breaks off answer the code that is mended": async () => {
    const heard = "```repl\nx = llm_query('the first')\n";
    const rests = ["print((\n```", "FINAL(x)\n```"];
    const problems = [];
    for (const pause of [1_000, 4_000, 16_000, 64_000]) {
      let [asked, turn] = [0, 0];
      const result = await run({
        task: "t",
        aheadCalls: true,
        model: async (_, { onText }) => {
          const rest = rests[turn++] ?? "";
          onText(heard);
          await new Promise((resolve) => setTimeout(resolve, pause));
          onText(rest);
          return heard + rest;
        },
        subModel: (messages) => ({ text: `<${(asked++, messages.at(-1)?.content)}>`, usage: { inputTokens: 7 } }),
      });
      problems.push(...ended(result, "<the first>"), ...result.problems, ...unequal(asked, 1, "queries"));
      problems.push(...unequal(result.usage.calls, 3, "calls"));
      const types = result.events.map(({ type }) => type);
      if (types.indexOf("callStarted") > types.indexOf("executionEnded")) continue; // not while the first reply was written
      const told = result.events.flatMap((event) => (event.type === "callEnded" ? [[event.wasted, event.answer]] : []));
      return [...problems, ...unequal(told, [[undefined, "<the first>"]], "told")];
    }
    return [...problems, "it never was ready"];
  },

  "a function that fails or says nothing fails the run": async () => {
    const problems = [];
    for (const [model, error] of /** @type {[() => any, RegExp][]} */ ([
      [() => Promise.reject(new Error("no more")), /^no more$/],
      [() => 5, /neither a string nor/],
      [
        () => {
          throw new TypeError("at once");
        },
        /TypeError: at once/,
      ],
    ])) {
      const result = await run({ task: "t", model });
      problems.push(...ended(result, undefined, "failed"), ...result.problems);
      if (!error.test(result.error ?? "")) problems.push(`${result.error}`);
    }
    return problems;
  },
};

/** @type {Record<string, () => Promise<string[]>>} */
const ENDS = {
  "an abort ends everything, whatever is under way": async () => {
    const problems = [];
    const inChild = JSON.stringify([cell("while True: pass")]);
    for (const [what, faults, replies] of /** @type {[string, object[], string[]][]} */ ([
      ["a reply", [{ kind: "hang" }], [cell("1")]],
      ["a pause", [{ kind: "status", status: 429, headers: { "Retry-After": "60" } }], [cell("1")]],
      ["code", [], [cell("while True: pass")]],
      ["a query", [{ kind: "hang", match: '"content":"ask me"' }], [cell("llm_query_batched(['ask me'] * 5)")]],
      ["children", [], [cell(`rlm_query_batched([${JSON.stringify(inChild)}] * 6)`)]],
    ])) {
      await order(faults);
      const abort = new AbortController();
      /** @type {(value: unknown) => void} */
      let begin = () => {};
      const begun = new Promise((resolve) => (begin = resolve));
      const running = script(replies, {
        signal: abort.signal,
        maxDepth: 1,
        onEvent: ({ type, depth }) => {
          const there = { "a reply": "turnStarted", "a pause": "retry", children: "codeStarted" }[what];
          if (
            type === (there ?? (what === "code" ? "codeStarted" : "callStarted")) &&
            (what !== "children" || depth === 1)
          )
            wait(begin, 200);
        },
      });
      await begun;
      const at = performance.now();
      abort.abort();
      const result = await running;
      const took = performance.now() - at;
      problems.push(...ended(result, undefined, "aborted"), ...result.problems);
      if (took > 30_000) problems.push(`${what}: it took ${took} ms`);
    }
    const result = await script(["x"], { signal: AbortSignal.abort() });
    return [...problems, ...ended(result, undefined, "aborted"), ...result.problems];
  },

  "every kind of budget ends the run": async () => {
    const usage = { inputTokens: 100, outputTokens: 10, cost: 0.25 };
    const model = async () => ({ text: cell("x = 1"), usage });
    const problems = [];
    for (const [budget, error] of /** @type {[object, RegExp][]} */ ([
      [{ maxCalls: 3 }, /3 model calls.*maxCalls/],
      [{ maxTokens: 250 }, /250 tokens.*maxTokens/],
      [{ maxCost: 0.5 }, /cost of 0.5.*maxCost/],
    ])) {
      const result = await run({ task: "t", model, budget });
      problems.push(
        ...ended(result, undefined, "limit"),
        ...unequal(result.iterations, budget.maxCost ? 2 : 3, "turns"),
      );
      if (!error.test(result.error ?? "")) problems.push(`${result.error}`);
      problems.push(...result.problems);
    }
    const forever = [cell("while True: pass")];
    const at = performance.now();
    const late = await script(forever, { budget: { maxTime: 4_000 } });
    if (performance.now() - at > 60_000) problems.push(`${performance.now() - at} ms instead of 4000`);
    return [...problems, ...ended(late, undefined, "limit"), ...late.problems];
  },

  "queries beyond the budget fail, and the run ends": async () => {
    const result = await run({ task: "go on", model: endpoint("endless"), budget: { maxCalls: 8 } });
    const { requests } = await log();
    return [...ended(result, undefined, "limit"), ...unequal(result.usage.calls, 8, "calls"), ...result.problems];
  },

  "many runs leave nothing behind": async () => {
    const replies = [cell("x = [llm_query('a'), rlm_query(rlm_task)]"), cell("FINAL(str(x))")];
    const child = JSON.stringify([cell("FINAL(llm_query('b'))")]);
    replies[0] = (replies[0] ?? "").replace("rlm_task", JSON.stringify(child));
    const problems = [];
    const counts = [];
    // A leak of one reference in each run shows in nine runs, with the tolerance below.
    for (let round = 0; round < 9; round += 1) {
      const result = await script(replies, { sandbox: { spares: 0 } });
      problems.push(...ended(result, "['echo: a', 'echo: b']"), ...result.problems);
      counts.push(countReferences(supervisor));
    }
    // Without functions of a user, no closures wait for the garbage collector, so the counts must be exact.
    const [, , settled = 0] = counts;
    if (Math.max(...counts.slice(3)) > settled + 5) problems.push(`references of the supervisor: ${counts}`);
    return problems;
  },

  "runs work without a frame, too": async () => {
    const child = JSON.stringify([cell("FINAL(context)")]);
    const code = cell(`FINAL(rlm_query(${JSON.stringify(child)}, 'inner') + context)`);
    const result = await script([code], { context: " outer", sandbox: { isolation: "worker" } });
    return [...ended(result, "inner outer"), ...result.problems];
  },

  "a context that Python has no counterpart for fails the run": async () => {
    const result = await script([cell("1")], { context: () => 1 });
    return [
      ...ended(result, undefined, "failed"),
      ...(/Function/.test(result.error ?? "") ? [] : [`${result.error}`]),
      ...result.problems,
    ];
  },

  "contexts are files and blobs, too": async () => {
    const context = new File(["a teal line\n"], "a.txt");
    const result = await script([cell("FINAL(context)")], { context });
    const facts = result.events.flatMap((event) => (event.type === "runStarted" ? event.contexts : []));
    return [
      ...ended(result, "a teal line\n"),
      ...unequal(
        facts,
        [{ name: "context", type: "str", length: 12, unit: "characters", peek: "a teal line\n" }],
        "facts",
      ),
      ...result.problems,
    ];
  },

  "several contexts outlive the guest, and the model is told of each": async () => {
    const contexts = ["one\n", new File(["two"], "b.txt"), [3, new Blob([new Uint8Array([255])])], null];
    const result = await script(
      [cell("import ctypes\nctypes.string_at(-1)"), cell("FINAL(repr([context, context_1, context_2, context_3]))")],
      { contexts },
    );
    const [facts] = result.events.flatMap((event) => (event.type === "runStarted" ? [event.contexts] : []));
    const crashed = result.events.some(
      (event) => event.type === "executionEnded" && event.execution.outcome === "crashed",
    );
    return [
      ...ended(result, "['one\\n', 'two', [3, b'\\xff'], None]"),
      ...unequal(
        facts?.map(({ name, type, length, peek }) => [name, type, length ?? 0, peek]),
        [
          ["context", "str", 4, "one\n"],
          ["context_1", "str", 3, "two"],
          ["context_2", "list", 2, "[3, b'\\xff']"],
          ["context_3", "NoneType", 0, "None"],
        ],
        "facts",
      ),
      ...unequal(crashed, true, "the guest has crashed"),
      ...result.problems,
    ];
  },

  "the rules name more contexts only where there are some": async () => {
    const told = [];
    for (const options of [{ context: "a" }, { contexts: ["a"] }, { contexts: ["a", "b"] }]) {
      /** @type {string[]} */
      const rules = [];
      const model = async (/** @type {{ content: string }[]} */ messages) => {
        rules.push(messages.map(({ content }) => content).join("\n"));
        return cell("FINAL('done')");
      };
      const result = await run({ task: "t", ...options, model });
      told.push([result.answer, /context_1/.test(rules[0] ?? ""), /`context_1` is a str/.test(rules[0] ?? "")]);
    }
    return unequal(
      told,
      [
        ["done", false, false],
        ["done", false, false],
        ["done", true, true],
      ],
      "told",
    );
  },

  "wrong options are refused by name": async () => {
    const problems = [];
    const good = { task: "t", model: async () => "x" };
    for (const [options, name] of /** @type {[any, string][]} */ ([
      [{}, "task"],
      [{ task: "t" }, "model"],
      [{ ...good, maxdepth: 1 }, "maxdepth"],
      [{ ...good, maxDepth: -1 }, "maxDepth"],
      [{ ...good, model: { baseUrl: "https://x" } }, "model.model"],
      [{ ...good, subModel: { model: "x" } }, "subModel.baseUrl"],
      [{ ...good, draft: { model: "x" } }, "draft.baseUrl"],
      [{ ...good, aheadCalls: 1 }, "aheadCalls"],
      [{ ...good, model: { baseUrl: "/x", model: "y", temperature: 0 } }, "model.temperature"],
      [{ ...good, budget: { maxCals: 1 } }, "budget.maxCals"],
      [{ ...good, budget: { maxDepth: 1 } }, "budget.maxDepth"],
      [{ ...good, sandbox: { onLLMQuery() {} } }, "sandbox.onLLMQuery"],
      [{ ...good, model: { baseUrl: "example.com/v1", model: "y" } }, "model.baseUrl"],
      [{ ...good, sandbox: { profile: "rlm" } }, "sandbox.profile"],
      [{ ...good, sandbox: { timeout: "x" } }, "timeout"],
      [{ ...good, answerSchema: { pattern: "x" } }, "answerSchema"],
      [{ ...good, signal: {} }, "signal"],
      [{ ...good, contexts: [] }, "contexts"],
      [{ ...good, contexts: "text" }, "contexts"],
      [{ ...good, contexts: Array(21).fill("") }, "contexts"],
      [{ ...good, context: "a", contexts: ["b"] }, "contexts"],
      [undefined, "task"],
    ])) {
      const error = await runRlm(options).catch((error) => error);
      if (error?.code !== "invalid_option" || !error.message.startsWith(`${name}: `))
        problems.push(`${name}: ${error}`);
    }
    return problems;
  },
};

/** @type {Record<string, () => Promise<string[]>>} */
const REPLAY = {
  "a trajectory runs again without its endpoint": async () => {
    const { text, total } = records(3, 300_000);
    const options = { context: text, maxDepth: 2, maxConcurrentRuns: 2 };
    const task = "level 0, parts 2: add up the teal values";
    const first = await run({ ...options, task, model: endpoint("tree") });
    await order([]);
    const lines = toJsonLines(first.events);
    const read = await fromJsonLines(lines);
    const rubbish = await fromJsonLines(lines.replace('"version":1', '"version":9')).catch(({ code }) => code);
    const again = await run({ ...options, task, model: replayRlm(lines) });
    const twice = await run({ ...options, task, model: replayRlm(again.events) });
    const { requests } = await log();
    return [
      ...[first, again, twice].flatMap((result) => [...ended(result, String(total)), ...result.problems]),
      ...unequal(requests, 0, "requests"),
      ...unequal(rubbish, "invalid_option", "another version"),
      ...unequal(
        read.map(({ type, run, time }) => [type, run, time]),
        first.events.map(({ type, run, time }) => [type, run, time]),
        "events that were read",
      ),
      ...unequal(again.usage, first.usage, "usage"),
    ];
  },

  "a trajectory without an answer fails the run": async () => {
    const child = JSON.stringify([cell("FINAL(llm_query('inner'))")]);
    const code = cell(`FINAL([*llm_query_batched(['a', 'b']), *rlm_query_batched([${JSON.stringify(child)}])])`);
    const first = await script([code], { maxDepth: 1 });
    const problems = [...first.problems];
    for (const [type, id, missing] of [
      ["callEnded", "0", "answer for call 1 of run 0"],
      ["callEnded", "0.0", "answer for call 1 of run 0.0"],
      ["modelReplied", "0.0", "reply for turn 1 of run 0.0"],
    ]) {
      const at = first.events.findIndex(
        (event) => event.type === type && event.run === id && (event.type !== "callEnded" || event.call === 1),
      );
      const cut = await run({
        task: "again",
        maxDepth: 1,
        model: replayRlm(first.events.filter((_, index) => index !== at)),
      });
      problems.push(
        ...ended(cut, undefined, "failed"),
        ...unequal(cut.error, `the trajectory has no ${missing}`, "error"),
        ...cut.problems,
      );
    }
    return problems;
  },

  "a recorded failure fails again, and rubbish is refused": async () => {
    await order([{ kind: "status", status: 400, match: '"content":"bad prompt"' }]);
    const code = cell("try:\n    llm_query('bad prompt')\nexcept HostCallError as error:\n    FINAL(str(error))");
    const first = await script([code]);
    const again = await run({ task: "other", model: replayRlm(first.events) });
    const refused = await run({ task: "t", model: replayRlm("{}") });
    return [
      ...ended(again, first.answer),
      ...(/line 1 is no event/.test(refused.error ?? "") ? [] : [`${refused.error}`]),
      ...[first, again, refused].flatMap(({ problems }) => problems),
    ];
  },
};

/** @type {Record<string, () => Promise<string[]>>} */
const HOSTILE = {
  "a prompt of 100 MB goes nowhere": async () => {
    await order([]);
    const code =
      "big = 'x' * 100_000_000\nfor ask in (llm_query, rlm_query):\n    try:\n        ask(big)\n" +
      "    except HostCallError as error:\n        print(error)\nFINAL('alive')";
    const result = await script([cell(code)], { sandbox: { timeout: 60_000 } });
    const { longest } = await log();
    const size = toJsonLines(result.events).length;
    return [
      ...ended(result, "alive"),
      ...(longest < 1e6 ? [] : [`a request of ${longest} bytes`]),
      ...(size < 1e5 ? [] : [`a trajectory of ${size} bytes`]),
      ...result.problems,
    ];
  },

  "a model's name of 50 MB goes nowhere": async () => {
    const code =
      "try:\n    llm_query('x', model='m' * 50_000_000)\nexcept HostCallError as error:\n    FINAL(str(error))";
    const result = await script([cell(code)], { sandbox: { timeout: 60_000 } });
    const size = toJsonLines(result.events).length;
    return [
      ...(/no model m{100};/.test(result.answer) ? [] : [`${result.answer}`.slice(0, 500)]),
      ...(size < 1e5 ? [] : [`a trajectory of ${size} bytes`]),
      ...result.problems,
    ];
  },

  "thousands of children are bounded": async () => {
    let most = 0;
    const watch = setInterval(() => (most = Math.max(most, document.querySelectorAll("iframe").length)), 20);
    const child = JSON.stringify([cell("FINAL('x')")]);
    const code = cell(`answers = rlm_query_batched([${JSON.stringify(child)}] * 3000)\nFINAL(str(len(answers)))`);
    const result = await script([code], { budget: { maxCalls: 12 }, maxConcurrentRuns: 2 });
    clearInterval(watch);
    return [
      ...ended(result, "3000"),
      ...(most <= 5 ? [] : [`${most} frames at once`]),
      ...(result.usage.calls <= 12 ? [] : [`${result.usage.calls} calls`]),
      ...result.problems,
    ];
  },

  "code that looks for the key finds nothing": async () => {
    const code =
      "import gc, sys, os\n" +
      `needle = ${JSON.stringify(KEY.slice(0, 12))} + ${JSON.stringify(KEY.slice(12))}[:5]\n` +
      "found = [o for o in gc.get_objects() if isinstance(o, (str, dict)) and needle in repr(o)[:10000] and o is not globals()]\n" +
      "print(len(found), any(needle in value for value in os.environ.values()))\n" +
      "import js\nFINAL(str(any(needle in str(getattr(js, name, '')) for name in dir(js))))";
    const result = await script([cell(code)]);
    return [...ended(result, "False"), ...result.problems];
  },

  "an answer that is too large or no value is told": async () => {
    const result = await script([cell("FINAL('x' * 20_000_000)"), cell("FINAL(object())")]);
    const rejected = result.events.flatMap((event) => (event.type === "answerRejected" ? [event.problems] : []));
    return [
      ...(/object/.test(result.answer) ? [] : [`${result.answer}`]),
      ...(/at most/.test(rejected[0] ?? "") ? [] : [`${rejected}`]),
      ...result.problems,
    ];
  },
};

export const TESTS = { ...ANSWERS, ...MODELS, ...ENDS, ...REPLAY, ...RECURSION, ...HOSTILE, ...CORPORA };

/** @param {string} name @returns {Promise<string[]>} */
export async function runTest(name) {
  await order([]);
  return TESTS[name]();
}

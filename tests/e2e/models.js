// Tests of `sandglass/models` in a page. tests/e2e/models.mjs runs each of `TESTS` and reports the problems that they return.
// Objects stand for engines here. They keep to the interfaces that tests/types/models.ts checks, and to what the engines do
// where it matters: one question at a time, an interrupt that is forgotten, a prompt that is cut.

import { unequal, until } from "./tools.js";

/** @import { Message } from "../../pkg/sandglass.js" */
/** @import { BrowserLanguageModel, ChatChunk } from "../../pyodide-glue/models.js" */

const { createSandbox } = /** @type {typeof import("../../pyodide-glue/index.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/index.js"))
);
const { runRlm } = /** @type {typeof import("../../pyodide-glue/rlm.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/rlm.js"))
);
const { languageModel, lmStudio, ollama, transformers, webLLM, wllama } =
  /** @type {typeof import("../../pyodide-glue/models.js")} */ (
    await import(/** @type {any} */ ("/pyodide-glue/models.js"))
  );

let servers = { answering: "", forbidding: "", gone: "" };

/** @param {typeof servers} all */
export function connect(all) {
  servers = all;
  return { TESTS };
}

// ---- tools ----

/** Asks a model as `llm_query` does. @param {import("../../pyodide-glue/models.js").Model} model @param {string} prompt @param {AbortSignal} [signal] */
const ask = (model, prompt, signal = new AbortController().signal) => model(prompt, { signal });

/** The message of the error that a promise is rejected with. @param {Promise<unknown>} promise */
const failure = (promise) =>
  promise.then(
    (value) => `no error, but ${JSON.stringify(value)}`,
    (error) => `${error.name}: ${error.message}`,
  );

/** @param {string} text @param {...RegExp} patterns */
const says = (text, ...patterns) =>
  patterns.flatMap((pattern) => (pattern.test(text) ? [] : [`"${text}" does not match ${pattern}`]));

/** The reply of a model that writes code in a turn, and answers queries. @param {Message[]} messages */
const reply = (messages) =>
  messages.length > 1 ? "I ask.\n```repl\nFINAL(llm_query('the rain'))\n```" : `read ${messages.at(-1)?.content}`;

/**
 * Runs a tree and a sandbox with the same model, and checks that both get its answers, its pieces and its use.
 * @param {import("../../pyodide-glue/models.js").Model} model
 */
async function servesBoth(model) {
  let pieces = "";
  const run = await runRlm({
    task: "What?",
    model,
    onEvent: (event) => {
      if (event.type === "text") pieces += event.text;
    },
  });
  const sandbox = await createSandbox({ onLLMQuery: model, budget: {} });
  await sandbox.initialize(null);
  const { stdout, error } = await sandbox.execute("print(llm_query('a letter'))");
  const { inputTokens, outputTokens } = sandbox.budget.spent;
  await sandbox.destroy();
  return [
    ...unequal(run.answer, "read the rain", "answer"),
    ...(run.error ? [run.error] : []),
    ...says(pieces, /^I ask\.\n```repl/),
    ...unequal(stdout, "read a letter\n", "stdout"),
    ...(error ? [error] : []),
    ...unequal([inputTokens, outputTokens], [8, 3], "usage"),
  ];
}

/** Pieces of a text, a word each. @param {string} text */
const words = (text) => text.match(/\S*\s*/g)?.filter(Boolean) ?? [];

/** @param {string} text @param {string} [finish_reason] @returns {ChatChunk[]} */
const chunks = (text, finish_reason = "stop") => [
  { choices: [{ delta: { content: null }, finish_reason: null }] },
  ...words(text).map((content) => ({ choices: [{ delta: { content }, finish_reason: null }] })),
  { choices: [{ delta: {}, finish_reason }] },
  { choices: [], usage: { prompt_tokens: 8, completion_tokens: words(text).length } },
];

/** An engine of WebLLM: a lock, and an interrupt that is forgotten when the next work begins. */
class WebLLM {
  interrupted = false;
  working = 0;
  /** Prompts whose answers were begun. @type {string[]} */
  begun = [];
  /** Each ends the pause before the first piece of an answer. @type {(() => void)[]} */
  held = [];
  hold = false;

  interruptGenerate() {
    this.interrupted = true;
  }

  chat = {
    completions: {
      /** @param {{ messages: Message[] }} request */
      create: async ({ messages }) => this.generate(messages),
    },
  };

  /** @param {Message[]} messages */
  async *generate(messages) {
    if (++this.working > 1) throw new Error("two at a time");
    this.begun.push(messages.at(-1)?.content ?? "");
    this.interrupted = false;
    try {
      if (this.hold) await new Promise((resolve) => this.held.push(() => resolve(undefined)));
      for (const chunk of chunks(reply(messages))) {
        if (this.interrupted && chunk.choices[0]?.delta.content) continue;
        yield chunk;
        await Promise.resolve();
      }
    } finally {
      this.working -= 1;
    }
  }
}

/**
 * A session class of the Prompt API.
 * @param {{ availability?: "unavailable" | "downloadable" | "available", fail?: () => void, log?: string[], stream?: (signal: AbortSignal) => ReadableStream<string> }} [options]
 * @returns {BrowserLanguageModel}
 */
function browserModel({ availability = "available", fail, log = [], stream } = {}) {
  return {
    availability: async () => availability,
    create: async ({ initialPrompts, monitor, signal } = {}) => {
      fail?.();
      signal?.throwIfAborted();
      if (monitor) {
        const download = new EventTarget();
        monitor(download);
        for (const loaded of [0, 0.5, 1])
          download.dispatchEvent(new ProgressEvent("downloadprogress", { loaded, total: 1, lengthComputable: true }));
        availability = "available";
      }
      log.push("create");
      return {
        contextUsage: 5,
        contextWindow: 6144,
        measureContextUsage: async () => 3,
        promptStreaming(prompt, { signal }) {
          if (stream) return stream(signal);
          const text = reply([...initialPrompts, { role: "user", content: prompt }]);
          this.contextUsage = 8 + words(text).length;
          return new ReadableStream({
            start(controller) {
              for (const word of words(text)) controller.enqueue(word);
              controller.close();
            },
          });
        },
        destroy: () => log.push("destroy"),
      };
    },
  };
}

/** @template T @param {BrowserLanguageModel | undefined} model @param {() => Promise<T>} work */
async function inBrowserWith(model, work) {
  const before = Object.getOwnPropertyDescriptor(globalThis, "LanguageModel");
  Object.defineProperty(globalThis, "LanguageModel", { value: model, configurable: true, writable: true });
  try {
    return await work();
  } finally {
    Reflect.deleteProperty(globalThis, "LanguageModel");
    if (before) Object.defineProperty(globalThis, "LanguageModel", before);
  }
}

/** A pipeline of transformers.js, whose tokens are numbers of words. @param {{ most?: number }} [options] */
function pipeline({ most = Infinity } = {}) {
  /** @type {string[]} */
  const vocabulary = [];
  const tokenizer = {
    model_max_length: most,
    /** @param {bigint[]} tokens */
    decode: (tokens) => tokens.map((token) => vocabulary[Number(token)]).join(""),
  };
  let working = 0;
  /** @type {(() => void)[]} */
  const held = [];
  /** @param {Message[]} messages @param {any} options */
  const generate = async (messages, { streamer, stopping_criteria, max_new_tokens }) => {
    if (++working > 1) throw new Error("two at a time");
    try {
      if (max_new_tokens !== 1024) throw new Error(`max_new_tokens is ${max_new_tokens}`);
      const length = Math.min(most, messages.length > 1 ? 20 : 8);
      streamer.put([Array.from({ length }, () => 0n)]);
      let text = "";
      for (const word of words(reply(messages))) {
        if (engine.hold) await new Promise((resolve) => held.push(() => resolve(undefined)));
        vocabulary.push(word);
        text += word;
        streamer.put([[BigInt(vocabulary.length - 1)]]);
        if (stopping_criteria.some((/** @type {any} */ stop) => stop([[]])[0])) {
          engine.stopped += 1;
          break;
        }
        await Promise.resolve();
      }
      streamer.end();
      return [{ generated_text: [...messages, { role: "assistant", content: text }] }];
    } finally {
      working -= 1;
    }
  };
  const engine = Object.assign(generate, { tokenizer, held, hold: false, stopped: 0 });
  return engine;
}

/** The error of Python's question to an endpoint. @param {import("../../pkg/sandglass.js").RlmEndpoint} onLLMQuery */
async function failingQuestion(onLLMQuery) {
  const sandbox = await createSandbox({ onLLMQuery });
  await sandbox.initialize(null);
  const { error } = await sandbox.execute("llm_query('a')");
  await sandbox.destroy();
  return error ?? "no error";
}

// ---- tests ----

/** @type {Record<string, () => Promise<string[]>>} */
export const TESTS = {
  "webLLM: serves runs and sandboxes": () => servesBoth(webLLM(new WebLLM())),

  "webLLM: one question at a time, and a question that waits is withdrawn by itself": async () => {
    const engine = new WebLLM();
    engine.hold = true;
    const model = webLLM(engine);
    const controller = new AbortController();
    const [first, second, third] = [ask(model, "one"), ask(model, "two", controller.signal), ask(model, "three")];
    await until(() => engine.held.length === 1, "the first has begun");
    controller.abort();
    engine.hold = false;
    engine.held[0]?.();
    return [
      ...unequal((await first).text, "read one", "the first"),
      ...says(await failure(second), /AbortError/),
      ...unequal((await third).text, "read three", "the third"),
      ...unequal(engine.begun, ["one", "three"], "begun"),
    ];
  },

  "webLLM: an abort interrupts the engine, which then answers the next": async () => {
    const engine = new WebLLM();
    engine.hold = true;
    const model = webLLM(engine);
    const controller = new AbortController();
    let pieces = "";
    const first = model("one", { signal: controller.signal, onText: (text) => (pieces += text) });
    await until(() => engine.held.length === 1, "the first has begun");
    controller.abort();
    engine.hold = false;
    engine.held[0]?.();
    return [
      ...says(await failure(first), /AbortError/),
      ...unequal(pieces, "", "pieces after the abort"),
      ...unequal((await ask(model, "two")).text, "read two", "the next"),
    ];
  },

  "webLLM: a prompt that is too long says what to do, and others pass as they are": async () => {
    // The engine's own words, of @mlc-ai/web-llm 0.2.86.
    const words = "Prompt tokens exceed context window size: number of prompt tokens: 9000; context window size: 4096";
    const failing = (/** @type {string} */ message) =>
      webLLM({
        interruptGenerate() {},
        chat: { completions: { create: () => Promise.reject(new Error(message)) } },
      });
    return [
      ...says(await failure(ask(failing(words), "a")), /9000/, /maxPromptTokens/, /`context_window_size`/),
      ...unequal(await failure(ask(failing("the GPU is lost"), "a")), "Error: the GPU is lost", "another error"),
    ];
  },

  "wllama: serves runs and sandboxes": () =>
    servesBoth(
      wllama({
        createChatCompletion: async ({ messages }) =>
          (async function* () {
            yield* chunks(reply(messages));
          })(),
      }),
    ),

  "wllama: its real class, without a model, and a window that is full": async () => {
    const { Wllama } = await import(/** @type {any} */ ("/node_modules/@wllama/wllama/esm/index.js"));
    const engine = new Wllama({ default: "/node_modules/@wllama/wllama/esm/wasm/wllama.wasm" });
    const full = wllama({
      createChatCompletion: async () =>
        (async function* () {
          yield* chunks("", "length");
        })(),
    });
    return [
      ...says(await failure(ask(wllama(engine), "a")), /loadModel\(\) is not yet called/),
      ...says(await failure(ask(full, "a")), /context window/, /`n_ctx`/),
      ...says(await failure(wllama(engine)("a", { signal: new AbortController().signal, model: "b" })), /no model b/),
    ];
  },

  "transformers: serves runs and sandboxes": () => servesBoth(transformers(pipeline())),

  "transformers: an abort stops the generation": async () => {
    const engine = pipeline();
    engine.hold = true;
    const model = transformers(engine);
    const controller = new AbortController();
    const [first, second] = [ask(model, "one", controller.signal), ask(model, "two")];
    await until(() => engine.held.length === 1, "the first has begun");
    controller.abort();
    engine.hold = false;
    engine.held[0]?.();
    return [
      ...says(await failure(first), /AbortError/),
      ...unequal((await second).text, "read two", "the next"),
      ...unequal(engine.stopped, 1, "stopped"),
    ];
  },

  "transformers: a prompt that would be cut fails": async () =>
    says(await failure(ask(transformers(pipeline({ most: 8 })), "a")), /context window of 8/, /maxPromptTokens/),

  "languageModel: serves runs and sandboxes, a session for each question": async () => {
    /** @type {string[]} */
    const log = [];
    const problems = await inBrowserWith(browserModel({ log }), async () => servesBoth(await languageModel()));
    const created = log.filter((entry) => entry === "create").length;
    return [...problems, ...unequal([created, log.length - created], [3, 3], "sessions created and destroyed")];
  },

  "languageModel: downloads with progress": async () => {
    /** @type {number[]} */
    const progress = [];
    const onProgress = ({ loaded = 0, total = 0 }) => progress.push(loaded / total);
    const text = await inBrowserWith(browserModel({ availability: "downloadable" }), async () =>
      ask(await languageModel({ onProgress }), "a").then(({ text }) => text),
    );
    return [...unequal(text, "read a", "answer"), ...unequal(progress, [0, 0.5, 1], "progress")];
  },

  "languageModel: says what to do when there is no model": async () => {
    const notAllowed = browserModel({
      availability: "downloadable",
      fail: () => {
        throw new DOMException("requires a user gesture", "NotAllowedError");
      },
    });
    const failed = (/** @type {BrowserLanguageModel | undefined} */ model) =>
      inBrowserWith(model, () => failure(languageModel()));
    return [
      ...says(await failed(undefined), /no LanguageModel/, /endpoint/),
      ...says(await failed(browserModel({ availability: "unavailable" })), /unavailable/, /chrome:\/\//),
      ...says(await failed(notAllowed), /click/, /user gesture/),
    ];
  },

  "languageModel: a prompt that is too long, and an abort": async () => {
    const tooLong = () =>
      new ReadableStream({
        start: (controller) => controller.error(new DOMException("The input is too large.", "QuotaExceededError")),
      });
    const hanging = (/** @type {AbortSignal} */ signal) =>
      new ReadableStream({
        start: (controller) => signal.addEventListener("abort", () => controller.error(signal.reason)),
      });
    /** @type {string[]} */
    const log = [];
    const controller = new AbortController();
    const [long, aborted] = await Promise.all([
      inBrowserWith(browserModel({ stream: tooLong }), async () => failure(ask(await languageModel(), "a"))),
      inBrowserWith(browserModel({ stream: hanging, log }), async () => {
        const asked = failure(ask(await languageModel(), "a", controller.signal));
        await until(() => log.includes("create"), "it has begun");
        controller.abort();
        return asked;
      }),
    ]);
    return [
      ...says(long, /window of 6144 tokens/, /maxPromptTokens/),
      ...says(aborted, /AbortError/),
      ...unequal(log, ["create", "destroy"], "sessions"),
    ];
  },

  "server: answers a sandbox and a run": async () => {
    const model = ollama("small", { baseUrl: `${servers.answering}/v1` });
    const sandbox = await createSandbox({ onLLMQuery: model, budget: {} });
    await sandbox.initialize(null);
    const { stdout } = await sandbox.execute(
      "print(llm_query('a letter', model='small'), llm_query_batched(['b'], model='other'))",
    );
    const { outputTokens } = sandbox.budget.spent;
    await sandbox.destroy();
    const run = await runRlm({ task: "What?", model });
    return [
      ...says(stdout, /^small read a letter \['Error: LM query failed - there is no model other; there are: small'\]/),
      ...unequal(outputTokens, Math.ceil("small read a letter".length / 4), "output tokens"),
      ...unequal(run.answer, "small read the context", "answer"),
    ];
  },

  "server: without permission for the page (CORS)": async () => {
    const baseUrl = `${servers.forbidding}/v1`;
    const [one, other] = [
      await failingQuestion(ollama("m", { baseUrl })),
      await failingQuestion(lmStudio("m", { baseUrl })),
    ];
    const run = await runRlm({ task: "What?", model: ollama("m", { baseUrl }) });
    const reach = crossOriginIsolated
      ? /nothing answers there.*; or it does not allow/
      : /: something answers there, but/;
    const origin = new RegExp(`OLLAMA_ORIGINS=${location.origin}`);
    return [
      ...says(one, reach, /does not allow requests from http.*\(CORS\)/, origin, /\(2 attempts\)/),
      ...says(other, reach, /"Enable CORS"/, /lms server start --cors/),
      ...says(run.error ?? "", reach, origin),
    ];
  },

  "server: nothing listens": async () =>
    says(
      await failingQuestion(ollama("m", { baseUrl: `${servers.gone}/v1` })),
      /nothing answers there/,
      /connect-src/,
      /ollama serve/,
      ...(crossOriginIsolated ? [/CORS/] : [/^(?!.*something answers)/s]),
    ),

  "server: an address of the page's own is not said to lack permission": async () =>
    says(await failingQuestion({ baseUrl: "/v1", model: "m", maxRetries: 0 }), /answered 405/),
};

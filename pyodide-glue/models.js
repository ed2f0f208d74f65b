// The entry `sandglass/models`: engines that run in the browser, and local servers, as the `model` of `runRlm` and the
// `onLLMQuery` of `createSandbox`. An engine is handed in: nothing here is loaded or downloaded by itself, but for the
// browser's own model.

/**
 * @import { Answer, Message, RlmEndpoint } from "../pkg/sandglass.js"
 *
 * @typedef {object} ModelCall  the second argument of a model: a part of what `runRlm` and `onLLMQuery` hand over
 * @property {AbortSignal} signal
 * @property {(text: string) => void} [onText]
 * @property {string} [model]  the model that Python named
 *
 * @typedef {(input: string | Message[], call: ModelCall) => Promise<Answer>} Model
 *   Answers a prompt or a conversation. It fits both `runRlm` and `createSandbox`.
 */

// --- engines with OpenAI's way to complete a chat --------------------------------------------------------------------

/**
 * @typedef {object} ChatChunk  a piece of a reply, as OpenAI streams it
 * @property {{ delta: { content?: string | null }, finish_reason: string | null }[]} choices
 * @property {{ prompt_tokens: number, completion_tokens: number } | null} [usage]
 *
 * @typedef {object} WebLLMEngine  the part of `MLCEngineInterface` of `@mlc-ai/web-llm` that is used
 * @property {{ completions: { create(request: { messages: Message[], stream: true, stream_options: { include_usage: true } }): Promise<AsyncIterable<ChatChunk>> } }} chat
 * @property {() => void | Promise<void>} interruptGenerate
 *
 * @typedef {object} WllamaEngine  the part of `Wllama` of `@wllama/wllama` (version 3) that is used
 * @property {(request: { messages: Message[], stream: true, abortSignal: AbortSignal }) => Promise<AsyncIterable<ChatChunk>>} createChatCompletion
 */

/**
 * A model that a WebLLM engine runs on the GPU: `webLLM(await CreateMLCEngine("…"))`. The engine may live in a worker.
 * Questions are answered one at a time.
 * @param {WebLLMEngine} engine
 * @param {Record<string, unknown>} [options]  fields of every request, such as `max_tokens` and `temperature`
 * @returns {Model}
 */
export function webLLM(engine, options) {
  return (input, call) =>
    inTurn(engine, call.signal, async () => {
      const interrupt = () => void engine.interruptGenerate();
      call.signal.addEventListener("abort", interrupt, { once: true });
      try {
        // Only an engine with several models needs a name.
        const model = call.model === undefined ? {} : { model: call.model };
        const request = { ...options, ...model, messages: conversation(input), ...STREAMED };
        // The engine forgets an interrupt that comes before its work, so it is told again.
        return await collect(await engine.chat.completions.create(request), call, interrupt);
      } catch (error) {
        throw explained(error, "load the model with a larger `context_window_size`");
      } finally {
        call.signal.removeEventListener("abort", interrupt);
      }
    });
}

/**
 * A model that a wllama instance runs, after its `loadModel…` has resolved. Questions are answered one at a time: the engine
 * would deliver none of several answers before all have begun.
 * @param {WllamaEngine} engine
 * @param {Record<string, unknown>} [options]  fields of every request, such as `max_tokens` and `temperature`
 * @returns {Model}
 */
export function wllama(engine, options) {
  return (input, call) =>
    inTurn(engine, call.signal, async () => {
      onlyModel(call);
      try {
        const request = { ...options, messages: conversation(input), ...STREAMED, abortSignal: call.signal };
        return await collect(await engine.createChatCompletion(request), call);
      } catch (error) {
        throw explained(error, "load the model with a larger `n_ctx`");
      }
    });
}

const STREAMED = {
  stream: /** @type {const} */ (true),
  stream_options: { include_usage: /** @type {const} */ (true) },
};

/**
 * Puts a streamed reply together.
 * @param {AsyncIterable<ChatChunk>} chunks
 * @param {ModelCall} call
 * @param {() => void} [interrupt]  ends the stream early
 * @returns {Promise<Answer>}
 */
async function collect(chunks, { signal, onText }, interrupt) {
  let text = "";
  let reason = "";
  /** @type {ChatChunk["usage"]} */
  let usage;
  for await (const chunk of chunks) {
    if (signal.aborted) interrupt?.();
    const piece = chunk.choices[0]?.delta.content ?? "";
    reason = chunk.choices[0]?.finish_reason ?? reason;
    usage = chunk.usage ?? usage;
    text += piece;
    if (piece) onText?.(piece);
  }
  signal.throwIfAborted();
  if (!text && reason === "length") throw new Error("the context window was full before the reply had any text");
  return answer(text, usage?.prompt_tokens, usage?.completion_tokens);
}

// --- transformers.js -------------------------------------------------------------------------------------------------

/**
 * @typedef {object} TextGenerator  the part of `TextGenerationPipeline` of `@huggingface/transformers` that is used
 * @property {{ decode(tokens: bigint[], options: { skip_special_tokens: boolean }): string, model_max_length?: number }} tokenizer
 */

/**
 * A model that a text-generation pipeline of transformers.js runs: `transformers(await pipeline("text-generation", "…"))`.
 * The model needs a chat template. Questions are answered one at a time.
 * @param {TextGenerator & ((messages: any, options?: any) => Promise<any>)} pipeline
 * @param {Record<string, unknown>} [options]  options of each generation; by default `max_new_tokens` is 1024
 * @returns {Model}
 */
export function transformers(pipeline, options) {
  return (input, call) =>
    inTurn(pipeline, call.signal, async () => {
      onlyModel(call);
      const streamer = new Streamer(pipeline.tokenizer, call);
      const stop = (/** @type {unknown[]} */ sequences) => sequences.map(() => call.signal.aborted);
      try {
        const generated = await pipeline(conversation(input), {
          max_new_tokens: 1024,
          ...options,
          streamer,
          stopping_criteria: [stop],
        });
        call.signal.throwIfAborted();
        const text = generated[0].generated_text.at(-1).content;
        return answer(text, streamer.inputTokens, streamer.outputTokens);
      } catch (error) {
        throw explained(error, "take a model with a larger window");
      }
    });
}

/** Hears the tokens of a generation: first those of the prompt, then each new one. */
class Streamer {
  inputTokens = 0;
  outputTokens = 0;
  /** @type {bigint[]} */
  #tokens = [];
  #told = 0;

  /** @param {TextGenerator["tokenizer"]} tokenizer @param {ModelCall} call */
  constructor(tokenizer, { onText }) {
    this.tokenizer = tokenizer;
    this.onText = onText;
  }

  /** @param {bigint[][]} batch */
  put([tokens = []]) {
    if (this.inputTokens === 0) {
      this.inputTokens = tokens.length;
      // The pipeline cuts longer prompts without a word.
      const most = this.tokenizer.model_max_length ?? Infinity;
      if (tokens.length >= most) throw new Error(`the prompt has more tokens than the context window of ${most}`);
      return;
    }
    this.outputTokens += tokens.length;
    this.#tokens.push(...tokens);
    // Later tokens may change the last word: a space may go, and a character may have several tokens.
    this.#tell((text) => text.search(/\s\S*$/) + 1);
  }

  end() {
    this.#tell((text) => text.length);
  }

  /** @param {(text: string) => number} until  the length of text that is settled */
  #tell(until) {
    if (!this.onText) return;
    const text = this.tokenizer.decode(this.#tokens, { skip_special_tokens: true });
    const settled = until(text);
    if (settled > this.#told) this.onText(text.slice(this.#told, settled));
    this.#told = Math.max(this.#told, settled);
  }
}

// --- the browser's own model -----------------------------------------------------------------------------------------

/**
 * @typedef {object} BrowserSession  the part of a session of the Prompt API that is used
 * @property {(prompt: string, options: { signal: AbortSignal }) => ReadableStream<string>} promptStreaming
 * @property {(prompt: string, options: { signal: AbortSignal }) => Promise<number>} [measureContextUsage]
 * @property {number} [contextUsage]
 * @property {number} [contextWindow]
 * @property {() => void} destroy
 *
 * @typedef {object} BrowserLanguageModel  the part of the Prompt API's `LanguageModel` that is used
 * @property {(options?: any) => Promise<"unavailable" | "downloadable" | "downloading" | "available">} availability
 * @property {(options?: any) => Promise<BrowserSession>} create
 */

/**
 * The browser's own model (Prompt API). Downloads it first if need be, for which the call has to be in an event handler of
 * a click or a key. Rejects when the browser has none.
 * @param {{ onProgress?: (progress: { loaded: number, total: number }) => void, [option: string]: unknown }} [options]
 *   `onProgress` hears the download; `loaded` of `total` 1 is here. All others are options of `LanguageModel.create`, such as
 *   `expectedOutputs`.
 * @returns {Promise<Model>}
 */
export async function languageModel({ onProgress, ...options } = {}) {
  const browser = /** @type {{ LanguageModel?: BrowserLanguageModel }} */ (globalThis).LanguageModel;
  if (!browser) {
    throw new Error(
      "this browser has no LanguageModel (Prompt API) here. Desktop Chrome and Edge have it, in pages of https or localhost and not in workers; " +
        "elsewhere use an endpoint, or a model of sandglass/models that runs in the page",
    );
  }
  const availability = await browser.availability(options);
  if (availability === "unavailable") {
    throw new Error(
      "the browser's model is unavailable: this device has too little memory or disk space, a policy forbids the model, or " +
        "it does not know the languages in the options. chrome://on-device-internals tells which; another model is needed here",
    );
  }
  if (availability !== "available") await download(browser, options, onProgress);

  return async (input, call) => {
    onlyModel(call);
    const { signal, onText } = call;
    const messages = conversation(input);
    const prompt = messages.pop()?.content ?? "";
    /** @type {BrowserSession | undefined} */
    let session;
    try {
      // A session remembers, so each question has its own.
      session = await browser.create({ ...options, initialPrompts: messages, signal });
      const before = session.contextUsage;
      const asked = await session.measureContextUsage?.(prompt, { signal });
      let text = "";
      const reader = session.promptStreaming(prompt, { signal }).getReader();
      for (let piece; !(piece = await reader.read()).done;) {
        text += piece.value;
        onText?.(piece.value);
      }
      if (before === undefined || asked === undefined) return { text };
      const inputTokens = before + asked;
      return answer(text, inputTokens, Math.max(0, (session.contextUsage ?? inputTokens) - inputTokens));
    } catch (error) {
      signal.throwIfAborted();
      throw explained(error, "take another model", session?.contextWindow);
    } finally {
      session?.destroy();
    }
  };
}

/**
 * @param {BrowserLanguageModel} browser
 * @param {Record<string, unknown>} options
 * @param {((progress: { loaded: number, total: number }) => void) | undefined} onProgress
 */
async function download(browser, options, onProgress) {
  const monitor = (/** @type {EventTarget} */ download) =>
    download.addEventListener("downloadprogress", (event) => {
      const { loaded, total } = /** @type {ProgressEvent} */ (event);
      onProgress?.({ loaded, total });
    });
  try {
    (await browser.create({ ...options, monitor })).destroy();
  } catch (error) {
    const { name, message } = /** @type {Error} */ (error);
    const help =
      name === "NotAllowedError"
        ? "call languageModel() in an event handler of a click or a key, because the model has to be downloaded"
        : "try again with a network and enough disk space";
    throw new Error(`the browser's model could not be downloaded (${name}: ${message}): ${help}`, { cause: error });
  }
}

// --- servers on this machine -----------------------------------------------------------------------------------------

/**
 * A model of an Ollama server: `ollama("llama3.2")`.
 * @param {string} model
 * @param {Partial<RlmEndpoint>} [options]  other fields of the endpoint, such as `baseUrl`
 * @returns {RlmEndpoint}
 */
export function ollama(model, options) {
  const setup =
    "Start Ollama with the environment variable " +
    `OLLAMA_ORIGINS=${globalThis.location?.origin ?? "*"}, which allows this page (\`ollama serve\`, or restart the app)`;
  return local("http://127.0.0.1:11434/v1", model, setup, options);
}

/**
 * A model of LM Studio's server: `lmStudio("qwen3-4b")`.
 * @param {string} model
 * @param {Partial<RlmEndpoint>} [options]  other fields of the endpoint, such as `baseUrl`
 * @returns {RlmEndpoint}
 */
export function lmStudio(model, options) {
  const setup =
    'Start LM Studio\'s server with "Enable CORS" on (Developer, Server Settings), or by `lms server start --cors`';
  return local("http://127.0.0.1:1234/v1", model, setup, options);
}

/**
 * @param {string} baseUrl @param {string} model @param {string} setup
 * @param {Partial<RlmEndpoint>} [options]
 * @returns {RlmEndpoint}
 */
function local(baseUrl, model, setup, options) {
  // A server on this machine is there or is not: waiting for it helps little.
  return { baseUrl, model, setup, maxRetries: 1, ...options };
}

// --- what they share -------------------------------------------------------------------------------------------------

/** @param {string | Message[]} input @returns {Message[]} */
function conversation(input) {
  return typeof input === "string" ? [{ role: "user", content: input }] : [...input];
}

/** @param {string} text @param {number} [inputTokens] @param {number} [outputTokens] @returns {Answer} */
function answer(text, inputTokens, outputTokens) {
  return inputTokens === undefined ? { text } : { text, usage: { inputTokens, outputTokens: outputTokens ?? 0 } };
}

/** Refuses a name, where there is one model without names. @param {ModelCall} call */
function onlyModel({ model }) {
  if (model !== undefined)
    throw new Error(`there is no model ${model.slice(0, 100)}: there is one only, without a name`);
}

/** The last work of each engine. @type {WeakMap<object, Promise<unknown>>} */
const lastWork = new WeakMap();

/**
 * Works with an engine that can do one thing at a time, when all work before is over. Work that is not wanted any more by
 * then does not begin.
 * @template T
 * @param {object} engine
 * @param {AbortSignal} signal
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
function inTurn(engine, signal, work) {
  const before = lastWork.get(engine) ?? Promise.resolve();
  const mine = before.then(() => {
    signal.throwIfAborted();
    return work();
  });
  lastWork.set(
    engine,
    mine.catch(() => {}),
  );
  return mine;
}

/**
 * An engine's error. If the prompt was too long, it says what to do.
 * @param {unknown} error
 * @param {string} larger  the engine's own way to more room
 * @param {number} [window]  tokens
 */
function explained(error, larger, window) {
  const { name = "", message = String(error) } = /** @type {Partial<Error>} */ (error ?? {});
  if (name !== "QuotaExceededError" && !/context (window|size|length)/i.test(message)) return error;
  const size = window === undefined ? "" : ` of ${window} tokens`;
  return new Error(
    `the prompt does not fit into the model's context window${size} (${message}). Ask about shorter pieces, set \`maxPromptTokens\` ` +
      `of runRlm below the window, or ${larger}`,
    { cause: error },
  );
}

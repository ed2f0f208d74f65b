/// <reference types="dom-chromium-ai" />
// Right and wrong uses of the types of `sandglass/models`, and the interfaces of engines that it takes. `tsc` is the test.

import { Wllama } from "@wllama/wllama";
import { createSandbox } from "../../pyodide-glue/index.js";
import { runRlm } from "../../pyodide-glue/rlm.js";
import { languageModel, lmStudio, ollama, transformers, webLLM, wllama } from "../../pyodide-glue/models.js";
import type { BrowserLanguageModel, Model } from "../../pyodide-glue/models.js";

// The part of `MLCEngineInterface` of @mlc-ai/web-llm 0.2.86 that a model needs: lib/types.d.ts, and
// lib/openai_api_protocols/chat_completion.d.ts. The package is too large to be installed for this.
interface MLCEngineInterface {
  chat: { completions: Completions };
  interruptGenerate: () => void;
}
interface Completions {
  create(request: ChatCompletionRequestNonStreaming): Promise<{ id: string }>;
  create(request: ChatCompletionRequestStreaming): Promise<AsyncIterable<ChatCompletionChunk>>;
  create(
    request: ChatCompletionRequestStreaming | ChatCompletionRequestNonStreaming,
  ): Promise<AsyncIterable<ChatCompletionChunk> | { id: string }>;
}
interface ChatCompletionRequestBase {
  messages: (
    | { content: string; role: "system" }
    | { content: string | { text: string; type: "text" }[]; role: "user"; name?: string }
    | { content?: string | null; role: "assistant"; name?: string }
    | { content: string; role: "tool"; tool_call_id: string }
  )[];
  stream_options?: { include_usage?: boolean } | null;
  max_tokens?: number | null;
  model?: string | null;
}
interface ChatCompletionRequestNonStreaming extends ChatCompletionRequestBase {
  stream?: false | null;
}
interface ChatCompletionRequestStreaming extends ChatCompletionRequestBase {
  stream: true;
}
interface ChatCompletionChunk {
  id: string;
  choices: {
    delta: { content?: string | null; role?: "system" | "user" | "assistant" | "tool" };
    finish_reason: "stop" | "length" | "tool_calls" | "abort" | null;
    index: number;
  }[];
  usage?: { completion_tokens: number; prompt_tokens: number; total_tokens: number };
}

// `TextGenerationPipeline` of @huggingface/transformers 4.3.1, as types/pipelines/text-generation.d.ts and
// types/tokenization_utils.d.ts declare it.
type Chat = { role: string; content: any }[];
type TextGenerationPipeline = {
  task: string;
  tokenizer: {
    get model_max_length(): number;
    decode(token_ids: bigint[] | number[], decode_args?: { skip_special_tokens?: boolean }): string;
  };
} & (<T extends string | Chat | string[] | Chat[]>(
  texts: T,
  options?: Partial<{ max_new_tokens: number; streamer: { put(value: bigint[][]): void; end(): void } | null }>,
) => Promise<T extends string ? { generated_text: string }[] : T extends Chat ? { generated_text: Chat }[] : never>);

export async function rightly(engine: MLCEngineInterface, pipeline: TextGenerationPipeline): Promise<void> {
  const models: Model[] = [
    webLLM(engine),
    webLLM(engine, { max_tokens: 500 }),
    wllama(new Wllama({ default: "wllama.wasm" }), { temperature: 0 }),
    transformers(pipeline, { max_new_tokens: 500 }),
    await languageModel({
      onProgress: ({ loaded, total }) => loaded / total,
      expectedOutputs: [{ type: "text", languages: ["en"] }],
    }),
  ];
  for (const model of models) {
    await createSandbox({ onLLMQuery: model });
    await runRlm({ task: "What?", model, subModel: model, draft: model });
    (await model("a", { signal: new AbortController().signal })).usage?.inputTokens satisfies number | undefined;
    await model([{ role: "system", content: "a" }], { signal: new AbortController().signal, onText: console.log });
  }
  for (const endpoint of [ollama("llama3.2"), lmStudio("qwen3-4b", { baseUrl: "http://127.0.0.1:4321/v1" })]) {
    await createSandbox({ onLLMQuery: endpoint });
    await runRlm({ task: "What?", model: endpoint });
  }
  // The Prompt API, as @types/dom-chromium-ai declares it.
  LanguageModel satisfies BrowserLanguageModel;
}

export function wrongly(): void {
  // @ts-expect-error: an engine has chat.completions
  webLLM({ interruptGenerate() {} });
  // @ts-expect-error: the class is no engine
  wllama(Wllama);
  // @ts-expect-error: a model has a name
  ollama();
  // @ts-expect-error: an endpoint has no such field
  lmStudio("m", { port: 1234 });
  // @ts-expect-error: a model waits to be downloaded
  void createSandbox({ onLLMQuery: languageModel() });
}

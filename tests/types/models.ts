/// <reference types="dom-chromium-ai" />
// Right and wrong uses of the types of `sandglass/models`, with the types of the engines that it takes. `tsc` is the test.
// The engines' packages are here for their types only: `overrides` in package.json keeps the runtimes of one out, which are large.

import type { ImageClassificationPipeline, TextGenerationPipeline } from "@huggingface/transformers";
import type { MLCEngine, MLCEngineInterface, WebWorkerMLCEngine } from "@mlc-ai/web-llm";
import { Wllama } from "@wllama/wllama";
import { createSandbox } from "../../pyodide-glue/index.js";
import { runRlm } from "../../pyodide-glue/rlm.js";
import { languageModel, lmStudio, ollama, transformers, webLLM, wllama } from "../../pyodide-glue/models.js";
import type { BrowserLanguageModel, Model } from "../../pyodide-glue/models.js";
import type { Message } from "../../pkg/sandglass.js";

export async function rightly(
  engine: MLCEngineInterface,
  engines: [MLCEngine, WebWorkerMLCEngine],
  pipeline: TextGenerationPipeline,
): Promise<void> {
  const models: Model[] = [
    webLLM(engine),
    webLLM(engines[0]),
    webLLM(engines[1], { max_tokens: 500 }),
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
  // The adapter's call of a pipeline, whose types are too many for its own signature.
  const messages: Message[] = [{ role: "user", content: "What?" }];
  const generated = await pipeline(messages, { max_new_tokens: 1 });
  generated[0]?.generated_text.at(-1)?.content satisfies string | unknown[] | undefined;
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
  // @ts-expect-error: a pipeline without a tokenizer makes no text
  transformers({} as ImageClassificationPipeline);
  // @ts-expect-error: a model waits to be downloaded
  void createSandbox({ onLLMQuery: languageModel() });
}

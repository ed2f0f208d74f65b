// Right and wrong uses of the types of `sandglass/rlm`. `tsc` is the test.

import { fromJsonLines, replayRlm, runRlm, toJsonLines } from "../../pyodide-glue/rlm.js";

export async function rightly(): Promise<void> {
  const run = await runRlm({
    task: "Which?",
    context: new Map(),
    model: {
      baseUrl: "https://api.example.com/v1",
      apiKey: "…",
      model: "m",
      body: { temperature: 0 },
      price: { input: 1 },
    },
    subModel: async (messages, { signal, onText, run, depth, purpose, call, model }) => {
      messages[0]?.role satisfies "system" | "user" | "assistant" | undefined;
      onText(`${run} ${depth} ${call} ${model ?? purpose}`);
      return signal.aborted ? "" : { text: "x", usage: { inputTokens: 1 } };
    },
    draft: async (_messages, { purpose, signal }) => (signal.aborted ? "" : { text: purpose }),
    aheadCalls: true,
    maxDepth: 2,
    budget: { maxCalls: 10, maxTime: 60_000 },
    answerSchema: { type: "integer" },
    sandbox: { timeout: 1_000, hostFunctions: { now: () => Date.now() } },
    onEvent: (event) => {
      event.run satisfies string;
      if (event.type === "executionEnded") event.execution.outcome satisfies string;
      if (event.type === "callEnded") event.usage?.cost satisfies number | undefined;
      if (event.type === "callEnded") event.wasted satisfies boolean | undefined;
      if (event.type === "callStarted") event.ahead satisfies boolean | undefined;
    },
    signal: new AbortController().signal,
  });
  run.outcome satisfies "answered" | "exhausted" | "limit" | "aborted" | "failed";
  run.error satisfies string | undefined;
  run.usage.inputTokens satisfies number | undefined;
  const lines: string = toJsonLines(run.events);
  (await fromJsonLines(lines))[0]?.run satisfies string | undefined;
  await runRlm({ task: "Which?", model: replayRlm(lines) });
  await runRlm({ task: "Which?", model: replayRlm(run.events) });
  await runRlm({ task: "Which?", contexts: ["text", new Blob([]), { a: 1 }], model: replayRlm(lines) });
}

export function wrongly(): void {
  // @ts-expect-error  the task is missing
  void runRlm({ model: async () => "" });
  // @ts-expect-error  queries are answered by the sub-model
  void runRlm({ task: "t", model: async () => "", sandbox: { onLLMQuery: () => "" } });
  // @ts-expect-error  an endpoint has an address
  void runRlm({ task: "t", model: { model: "m" } });
  // @ts-expect-error  contexts are a list
  void runRlm({ task: "t", model: () => "", contexts: "text" });
  // @ts-expect-error  there is no such event
  void runRlm({ task: "t", model: () => "", onEvent: ({ type }) => type === "runBegan" });
}

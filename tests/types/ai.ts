// Right and wrong uses of the types of `sandglass/ai`, with those of the released packages that it fits. `tsc` is the test.

import { createMCPClient } from "@ai-sdk/mcp";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { dynamicTool, generateText, jsonSchema, streamText, tool } from "ai";
import type { LanguageModel, ToolSet } from "ai";
import { z } from "zod";
import { pythonFunctions, pythonTool } from "../../pyodide-glue/ai.js";
import type { PythonOutput } from "../../pyodide-glue/ai.js";
import { createSandbox } from "../../pyodide-glue/index.js";

export async function rightly(model: LanguageModel, client: Client): Promise<void> {
  const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => city.length });
  const plain = tool({
    inputSchema: jsonSchema<{ a: number }>({ type: "object" }),
    async *execute({ a }) {
      yield a;
    },
  });
  const unknown = dynamicTool({ inputSchema: z.unknown(), execute: async (input) => input });
  const all: ToolSet = { weather };
  const other = await createMCPClient({ transport: { type: "http", url: "https://api.example.com" } });
  const functions = await pythonFunctions(client, other, { weather, plain, unknown }, all, await other.tools());
  const sandbox = await createSandbox({ hostFunctions: { ...functions.hostFunctions, now: () => Date.now() } });

  const python = pythonTool(sandbox, functions);
  const run = await generateText({ model, tools: { python, weather }, prompt: "Count." });
  for (const { dynamic, toolName, output } of run.toolResults)
    if (!dynamic && toolName === "python") output satisfies PythonOutput;
  for await (const part of streamText({ model, tools: { python }, prompt: "Count." }).stream)
    if (part.type === "tool-result" && !part.dynamic)
      part.output.outcome satisfies "ok" | "timeout" | string | undefined;
  tool(python);
}

export async function wrongly(model: LanguageModel): Promise<void> {
  const sandbox = await createSandbox();
  // @ts-expect-error: instructions are text
  pythonTool(sandbox, { instructions: 5 });
  // @ts-expect-error: a tool needs a sandbox
  pythonTool();
  // @ts-expect-error: a source is a client or tools by name
  await pythonFunctions("tools");
  const run = await generateText({ model, tools: { python: pythonTool(sandbox) }, prompt: "Count." });
  // @ts-expect-error: there is no such field
  for (const part of run.toolResults) if (!part.dynamic) part.output.printed;
}

"""An agent of OpenAI's Agents SDK whose commands and files are in a sandbox. Here a script stands in for the model."""

import asyncio

from agents import Runner, set_tracing_disabled
from agents.run import RunConfig
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.entries import File
from agents.testing import ScriptedModel, assistant_message, function_call
from sandglass.adapters import OpenAIAgentsSandboxClient

COUNT = "python -c \"print(sum(len(line.split()) for line in open('letter.txt')))\""

model = ScriptedModel(
    [
        [function_call("exec_command", {"cmd": COUNT}, call_id="count")],
        [assistant_message("The letter has 5 words.")],
    ]
)
agent = SandboxAgent(
    name="clerk",
    model=model,
    instructions="Answer from the files.",
    default_manifest=Manifest(entries={"letter.txt": File(content=b"sand runs\nthrough a glass\n")}),
)
client = OpenAIAgentsSandboxClient(timeout=10_000)

set_tracing_disabled(True)  # traces would be sent to OpenAI
result = asyncio.run(
    Runner.run(agent, "How many words has letter.txt?", run_config=RunConfig(sandbox=SandboxRunConfig(client=client)))
)
seen = model.last_call.input[-1]["output"]
print(seen, result.final_output, sep="\n")
assert seen.endswith("5\n")

"""A deep agent whose shell and files are in a sandbox. Here a script stands in for the model."""

from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from sandglass.adapters import DeepAgentsBackend

CODE = "print(sum(len(line.split()) for line in open('letter.txt')))"


class Script(GenericFakeChatModel):
    """A model that gives the next message, whatever it is asked."""

    def bind_tools(self, tools, **options):
        return self


def call(name, **arguments):
    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": name}])


messages = [
    call("write_file", file_path="/workspace/count.py", content=CODE),
    call("execute", command="python count.py"),
    AIMessage("The letter has 5 words."),
]
with DeepAgentsBackend(timeout=10_000) as backend:
    backend.upload_files([("/workspace/letter.txt", b"sand runs\nthrough a glass\n")])
    agent = create_deep_agent(model=Script(messages=iter(messages)), backend=backend)
    state = agent.invoke({"messages": [("user", "How many words has letter.txt?")]})
for message in state["messages"]:
    print(f"{message.type}: {message.text}")
assert "5" in state["messages"][-2].text

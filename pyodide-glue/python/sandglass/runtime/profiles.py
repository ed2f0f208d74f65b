"""The profiles: the projects whose prompts and controllers a sandbox can serve. Only this table distinguishes them.

Names, signatures and texts are those of the projects, because prompts name them and controllers parse them:

- `rlm`         alexzhang13/rlm 0.1.3: `rlm/environments/local_repl.py`, `base_env.py`, `rlm/core/lm_handler.py`
- `rlm-legacy`  alexzhang13/rlm 0.1.1 (tags v0.1.1, v0.1.1a): `rlm/environments/local_repl.py`; rlm-minimal at 973f8d4
  (`rlm/repl.py`) has a subset of its names
- `rlm-core`    DwayneWilkes/rlm (`@rlm/core`) at 9209274: `packages/core/src/repl/python-setup.ts`
- `dspy`        stanfordnlp/dspy 3.3.1 and 3.4.1: `dspy/predict/rlm.py`, `dspy/primitives/runner.js`

`crates/rlm/src/` has the texts for the model after a cell (`feedback.rs`), and reads the model's prose
(`directives.rs`).
"""

# Decisions: docs/internals/values-and-calls.md.

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sandglass.runtime.errors import HostCallError
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import as_text, safe_repr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Failure(NamedTuple):
    """The text before the reason of a failed query."""

    #: For a failure of the host's function.
    failed: str
    #: For a function that could not be asked, or did not answer in time.
    unasked: str

    def text(self, error: Exception) -> str:
        failed = type(error) is HostCallError and error.kind == "error"
        return (self.failed if failed else self.unasked) + as_text(error)


class Profile(NamedTuple):
    #: Names in Python, and the methods of `Helpers` that they stand for. The names are restored after each cell.
    helpers: Mapping[str, str]
    #: Names that exist until the user takes them for a variable.
    aliases: Mapping[str, str]
    #: The value of a failed query, by its host function. None raises the error.
    returned: Mapping[str, Failure] | None
    #: The value of a failed item in a batch.
    slots: Mapping[str, Failure]
    #: The value of a query that the host does not answer. None makes it a failure like any other.
    no_model: str | None
    #: True when an empty prompt is a ValueError.
    refuses_empty: bool
    #: The text of the error when `calls` more calls would be too many. None leaves the text to the host.
    call_limit: str | None
    #: The function that shows the value of a cell's last expression.
    show: Callable[[object], str] | None
    #: True when the dict `answer` declares the final answer. Otherwise `answer` is an ordinary variable.
    has_answer: bool
    #: True when the final answer is always text.
    final_is_text: bool
    #: Variables that are restored after each cell from their first one, and are set together with it.
    originals: Mapping[str, str]


def _printed(value: object) -> str:
    """Shows a value as dspy does: items of a list on lines of their own."""
    base = next((base for base in (list, tuple) if issubclass(type(value), base)), None)
    return as_text(value) if base is None else "\n".join(map(as_text, base.__iter__(value)))  # type: ignore[arg-type]


_LM, _RLM = "Error: LM query failed - ", "Error: RLM query failed - "
_RLM_HELPERS = {
    "llm_query": "llm_query",
    "llm_query_batched": "llm_query_batched",
    "rlm_query": "rlm_query_of_prompt",
    "rlm_query_batched": "rlm_query_of_prompts",
    "SHOW_VARS": "SHOW_VARS",
}
_RLM_RETURNED = {"llm_query": Failure("Error: ", _LM), "rlm_query": Failure(_RLM, _RLM)}
_RLM_ORIGINALS = {"context": "context_0", "history": "history_0"}
_READING = (
    *("count_matches", "extract_json", "extract_sections", "find_line", "count_lines", "get_line", "quote_match"),
    *("chunk_by_headers", "chunk_by_size"),
)
_NO_MODEL = "Error: No LM handler configured"

_DEFAULT = Profile(
    helpers={
        "llm_query": "llm_query",
        "llm_query_batched": "llm_query_batched",
        "batch_llm_query": "llm_query_batched",
        "rlm_query": "rlm_query",
        "rlm_query_batched": "rlm_query_batched",
        "batch_rlm_query": "rlm_query_batched",
        "FINAL": "FINAL",
        "FINAL_VAR": "FINAL_VAR",
        "SUBMIT": "SUBMIT",
        "SHOW_VARS": "SHOW_VARS",
        "chunk_text": "chunk_text",
        "search_context": "search_context",
    },
    # As in ysz/recursive-llm, predict-rlm, smolagents and others, whose prompts also have variables of such names.
    aliases={
        "llm_batch": "llm_query_batched",
        "query": "llm_query",
        "recursive_llm": "recursive_llm",
        "final_answer": "final_answer",
    },
    returned=None,
    slots={"llm_query": Failure(_LM, _LM), "rlm_query": Failure(_RLM, _RLM)},
    no_model=None,
    refuses_empty=False,
    call_limit=None,
    show=safe_repr,
    has_answer=True,
    final_is_text=False,
    originals={},
)

PROFILES = {
    "default": _DEFAULT,
    "rlm": Profile(
        helpers=_RLM_HELPERS,
        aliases={},
        returned=_RLM_RETURNED,
        slots={**_RLM_RETURNED, "llm_query": Failure("Error: llm() call failed - ", _LM)},
        no_model=_NO_MODEL,
        refuses_empty=False,
        call_limit=None,
        show=None,
        has_answer=True,
        final_is_text=True,
        originals=_RLM_ORIGINALS,
    ),
    "rlm-legacy": Profile(
        helpers={**_RLM_HELPERS, "FINAL_VAR": "FINAL_VAR"},
        aliases={},
        returned=_RLM_RETURNED,
        slots=_RLM_RETURNED,
        no_model=_NO_MODEL,
        refuses_empty=False,
        call_limit=None,
        show=None,
        has_answer=False,
        final_is_text=True,
        originals=_RLM_ORIGINALS,
    ),
    "rlm-core": _DEFAULT._replace(helpers={**_DEFAULT.helpers, **{name: name for name in _READING}}),
    "dspy": Profile(
        helpers={"llm_query": "llm_query", "llm_query_batched": "llm_query_batched", "SUBMIT": "SUBMIT"},
        aliases={},
        returned=None,
        slots={"llm_query": Failure("[ERROR] ", "[ERROR] ")},
        no_model=None,
        refuses_empty=True,
        call_limit=(
            "LLM call limit exceeded: {made} + {calls} > {most}. "
            "Use Python code for aggregation instead of making more LLM calls."
        ),
        show=_printed,
        has_answer=False,
        final_is_text=False,
        originals={},
    ),
}

"""The part that every guest runs.

- `runtime.py`    `Runtime`, which a backend drives: configure, execute, get and set variables
- `bridge.py`     `Bridge`, which a backend provides: output, host calls, sleep
- `compiling.py`  compiles cells;  `running.py` runs them;  `sources.py` keeps their text for tracebacks
- `namespace.py`  the user's `__main__`, reserved names, the final answer
- `helpers.py`    functions for user code: `llm_query`, `FINAL`, …;  `reading.py` functions to read a text:
  `chunk_text`, …
- `profiles.py`   names, texts and conventions of other projects, for `helpers.py`
- `output.py`     stdout and stderr, bounded;  `loop.py` asyncio on top of `Bridge.sleep`
- `displays.py`   rich outputs;  `figures.py` figures of matplotlib;  `ipython.py` names that notebooks import for both
- `values.py`     the wire format of values;  `errors.py` exceptions for user code
- `wire.py`       the version of the messages to and from the host;  `wire.pyi` their types; generated from the core
- `files.py`      files for the host: write, read, list, remove;  `completion.py` answers editors
- `guards.py`     undoes changes that a cell made to the interpreter;  `substitutes.py` objects that replace Python's
  own
- `recursion.py`  the recursion limit that user code sets;  `signals.py` the runtime's own signal
- `collector.py`  turns garbage collection off while no code of the user's may run
- `pristine.py`   builtins that cells cannot replace;  `reserve.py` memory that cells cannot take
- `user_code.py`  tells the user's frames from ours, for `tracebacks.py`, `warning_origin.py` and interrupts
"""

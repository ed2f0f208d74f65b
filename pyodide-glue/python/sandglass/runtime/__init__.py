"""The part that every guest runs.

- `runtime.py`    `Runtime`, the one object that a backend drives: configure, execute, get and set variables
- `bridge.py`     `Bridge`, what a backend provides: output, host calls, sleep
- `compiling.py`  a cell as code objects;  `running.py` runs them;  `sources.py` keeps their text for tracebacks
- `namespace.py`  the user's `__main__`, reserved names, the final answer
- `helpers.py`    `llm_query`, `FINAL`, …: what user code can call;  `reading.py` `chunk_text`, … that read a text
- `profiles.py`   the names, texts and conventions of other projects that `helpers.py` can take on
- `output.py`     stdout and stderr, bounded;  `loop.py` asyncio on top of `Bridge.sleep`
- `displays.py`   rich outputs;  `figures.py` those of matplotlib;  `ipython.py` what code of notebooks imports for them
- `values.py`     how values cross: the wire format;  `errors.py` what user code can catch
- `wire.py`       the version of the messages to and from the host;  `wire.pyi` their types; made of the core's
- `files.py`      files for the host: write, read, list, remove;  `completion.py` what an editor asks about code
- `guards.py`     undoes what a cell did to the interpreter;  `substitutes.py` what user code finds in place of its own
- `recursion.py`  the recursion limit that user code sets;  `signals.py` the signal that is ours
- `collector.py`  keeps garbage from being collected while nothing of the user's may run
- `pristine.py`   builtins that cells cannot replace;  `reserve.py` memory that they cannot take
- `user_code.py`  tells the user's frames from ours, for `tracebacks.py`, `warning_origin.py` and interrupts
"""

"""`JupyterREPL`: RLM code in the notebook kernel that is running."""

# Decisions: docs/internals/jupyter.md.

from __future__ import annotations

import os
import sys
from bisect import bisect
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from itertools import count
from keyword import iskeyword
from threading import Lock, RLock, main_thread
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import finalize

from sandglass.jupyter import kernel
from sandglass.jupyter.callbacks import Callbacks, calling
from sandglass.jupyter.code import compile_code, safe_builtins
from sandglass.jupyter.environment import ask_child, ask_handler
from sandglass.jupyter.result import Result, kept, short, unwrapped
from sandglass.jupyter.sync import Sync
from sandglass.runtime.errors import Submitted
from sandglass.runtime.helpers import Helpers
from sandglass.runtime.namespace import MISSING, Namespace
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.profiles import PROFILES
from sandglass.runtime.running import awaits, run, run_async
from sandglass.runtime.sources import Sources
from sandglass.runtime.tracebacks import describe
from sandglass.runtime.values import type_name

if TYPE_CHECKING:
    from types import CodeType

#: Cell numbers of all REPLs of a process, because tracebacks find the source by the cell's name.
_numbers = count(1)
_MAX_SOURCE_CHARS = 8_000_000


class JupyterREPL:
    """Runs RLM code in this process, which is usually a notebook's kernel, in a namespace of its own.

    **This is no sandbox.** The code can do everything that the kernel can: read and delete files, use the network, and
    change the notebook's variables through any object that it gets hold of. Leaving out some builtins prevents
    accidents, not attacks. For code that you do not trust, use the backends of `sandglass-host`.

    `on_llm_query(prompt)` and `on_rlm_query(task, context)` answer the code's queries. When the code names a model,
    they get its name as one more argument. They may be `async`.
    """

    is_jupyter_repl = True

    def __init__(
        self,
        on_llm_query: Callable[..., Any] | None = None,
        on_rlm_query: Callable[..., Any] | None = None,
        *,
        profile: str | None = None,
        workdir: str | os.PathLike[str] | None = None,
        allow_builtin_imports: bool = True,
        sync_to_user_ns: bool = False,
        sync_from_user_ns: bool = False,
        sync_vars: Iterable[str] | None = None,
        setup_code: str | None = None,
        max_output_length: int = 50_000,
        custom_tools: Mapping[str, Any] | None = None,
        custom_sub_tools: Mapping[str, Any] | None = None,
        context_payload: Any = None,
        lm_handler_address: tuple[str, int] | None = None,
        subcall_fn: Callable[..., Any] | None = None,
        persistent: bool = False,
        depth: int = 1,
        max_concurrent_subcalls: int = 4,
        cell_timeout: float | None = None,
    ) -> None:
        if profile is None:  # an RLM of rlms passes the address of its models
            profile = "default" if lm_handler_address is None and subcall_fn is None else "rlm"
        if profile not in PROFILES:
            raise ValueError(f"there is no profile {profile!r}, but {', '.join(PROFILES)}")
        if workdir is not None and not os.path.isdir(workdir):
            raise NotADirectoryError(f"workdir: there is no folder {os.fspath(workdir)!r}; make it first")
        names = None if sync_vars is None else _names("sync_vars", sync_vars)
        if (sync_to_user_ns or sync_from_user_ns) and kernel.find_shell() is None:
            raise RuntimeError("sync_to_user_ns and sync_from_user_ns need IPython, and none runs in this process")
        if max_output_length < 0 or max_concurrent_subcalls < 1:
            raise ValueError("max_output_length must be 0 or more, and max_concurrent_subcalls 1 or more")
        if cell_timeout is not None and not (cell_timeout > 0 and kernel.HAS_THREADS):
            raise ValueError("cell_timeout is a number of seconds above 0, and needs threads, which JupyterLite lacks")
        self.profile = profile
        self.workdir = None if workdir is None else os.path.abspath(workdir)
        self.allow_builtin_imports = allow_builtin_imports
        self.cell_timeout = cell_timeout
        self.lm_handler_address = lm_handler_address
        self.persistent = persistent
        self.depth = depth
        self.custom_tools = dict(custom_tools or {})
        self.custom_sub_tools = self.custom_tools if custom_sub_tools is None else dict(custom_sub_tools)
        self.max_concurrent_subcalls = max_concurrent_subcalls
        #: Records of the calls that the current execution has made through an `RLM`, in the order of its prompts.
        self.rlm_calls: list[Any] = []
        self._call_numbers: list[int] = []
        self._call_lock = Lock()
        #: Held while a context or history is added, because several threads may add one.
        self._adding = RLock()
        #: The result of the last execution, also when an interrupt has ended it.
        self.last_result: Result | None = None
        self._sync_options = bool(sync_from_user_ns), bool(sync_to_user_ns), names
        self._max_output_length = max_output_length
        functions = {"llm_query": on_llm_query, "rlm_query": on_rlm_query}
        if on_llm_query is None and (lm_handler_address is not None or subcall_fn is not None):
            functions["llm_query"] = ask_handler(self)
        if on_rlm_query is None and subcall_fn is not None:
            functions["rlm_query"] = ask_child(self, subcall_fn)
        answered = {name: function for name, function in functions.items() if function is not None}
        self._answered = list(answered)
        self._callbacks = Callbacks(answered, max_concurrent_subcalls)
        self._open = False
        self.setup()
        try:
            if context_payload is not None:
                self.load_context(context_payload)
            if setup_code:
                made = self.execute_code(setup_code)
                if made.error is not None:
                    raise RuntimeError(f"setup_code failed: {made.error}")
        except BaseException:
            self.cleanup()
            raise

    # ---- the protocol of rlms' environments ----

    def setup(self) -> None:
        """Makes a new namespace. Earlier variables and contexts are gone then."""
        if self._open:
            self.cleanup()
        profile = PROFILES[self.profile]
        self._builtins = safe_builtins(self.allow_builtin_imports)
        self._namespace = Namespace(dict(self._builtins))
        self._helpers = Helpers(self._namespace, self._callbacks.call)
        self._helpers.configure(profile, self._answered, sys.maxsize)
        helpers, aliases = self._helpers.table(profile, self._answered, [])
        values: dict[str, Any] = {}
        for name, entry in self.custom_tools.items():
            tool = entry["tool"] if isinstance(entry, dict) and "tool" in entry else entry
            if name in helpers or name in ("answer", "context", "history"):
                raise ValueError(f"custom_tools: {name!r} is reserved and cannot be the name of a tool")
            if not name.isidentifier():
                raise ValueError(f"custom_tools: {name!r} is no name that a tool can have")
            (helpers if callable(tool) else values)[name] = tool
        self._namespace.configure(profile, helpers, aliases)
        self._sources = Sources()
        self._sources.limit = _MAX_SOURCE_CHARS
        finalize(self, self._sources.clear)  # for a REPL that is dropped without `cleanup`
        self._loops = kernel.KernelLoops()
        self._emitter = kernel.Emitter()
        self._sync = Sync(self._namespace, *self._sync_options)
        self._contexts: dict[int, Any] = {}
        self._histories: set[int] = set()
        self._open = True
        for name, value in values.items():
            self._give(name, value)

    def load_context(self, context_payload: Any) -> None:
        """Assigns a value, without a copy, to the variables `context` and `completion_context`."""
        self._need_open()
        with self._adding:
            if self.persistent or "session_context_0" in self._namespace.globals:
                self.add_context(context_payload, 0)
                return
            self._contexts[0] = context_payload
            self._give("context", context_payload)
            self._give("completion_context", context_payload)

    def add_context(self, context_payload: Any, context_index: int | None = None) -> int:
        """Adds the context of another turn as `context_N` and `session_context_N`, and returns N. The first one is
        `context`.

        `context_history` is the list of all contexts, and `completion_context` is the newest one.
        """
        self._need_open()
        with self._adding:
            index = _index(context_index, self._contexts)
            self._contexts[index] = context_payload
            for number in sorted(self._contexts):  # `load_context` may have added the first one
                if number == index or f"session_context_{number}" not in self._namespace.globals:
                    self._give(f"session_context_{number}", self._contexts[number])
            if index == 0:
                self._give("context", context_payload)
            self._give(f"context_{index}", context_payload)
            self._give("completion_context", context_payload)
        return index

    def get_context_count(self) -> int:
        """The number of contexts; after `cleanup`, the number before it."""
        return max(self._contexts, default=-1) + 1

    def add_history(self, message_history: list[dict[str, Any]], history_index: int | None = None) -> int:
        """Adds a copy of a turn's messages as `history_N`, and returns N. The first one is `history`.

        `session_history` is the list of all of them.
        """
        self._need_open()
        copy = deepcopy(message_history)
        with self._adding:
            index = _index(history_index, self._histories)
            self._histories.add(index)
            self._give(f"history_{index}", copy)
        return index

    def get_history_count(self) -> int:
        """The number of histories; after `cleanup`, the number before it."""
        return max(self._histories, default=-1) + 1

    def update_handler_address(self, address: tuple[str, int]) -> None:
        """Sets the address of the next turn's models, which answer unless there is `on_llm_query`."""
        self.lm_handler_address = address
        if "llm_query" not in self._answered:
            self._callbacks.functions["llm_query"] = ask_handler(self)
            self._answered.append("llm_query")  # the helpers read this list

    def execute_code(self, code: str) -> Result:
        """Runs code to its end, and returns its result.

        An exception of the code is part of the result. An interrupt is raised again once the kernel is back in order,
        because whoever interrupts a notebook wants the whole cell to stop. `last_result` has the output until then.
        """
        self._need_open()
        if not isinstance(code, str):
            raise TypeError(f"execute_code() needs code to be a str, not {type_name(code)}")
        run, parent = _Run(), kernel.serving.get()
        run.interrupts.begin()
        try:
            if self.cell_timeout is not None and not run.interrupts.is_hearing:
                raise RuntimeError("cell_timeout interrupts the main thread: run this code there, or without one")
            lock = kernel.take_turn(parent, run.interrupts)
            try:
                result = self._take_turn(run, code, kernel.Turn(parent))
            finally:
                lock.release()
        finally:
            interrupted = run.interrupts.end()
        if isinstance(run.error, KeyboardInterrupt) and not run.interrupts.timed_out:
            raise run.error
        if interrupted:
            raise KeyboardInterrupt
        return result

    def cleanup(self) -> None:
        """Drops all variables. Anything that code put into the notebook stays. Running code is an error from now on."""
        if not self._open:
            return
        self._need_idle("interrupt it, or wait for its end")
        self._open = False
        self._sources.clear()
        self._contexts = dict.fromkeys(self._contexts)
        # Not emptied: functions that the notebook has by now need their globals.
        self._namespace = Namespace()
        self._helpers = Helpers(self._namespace, self._callbacks.call)
        self._callbacks.close()
        self.last_result = None
        self._begin_calls()
        self._sync = Sync(self._namespace, False, False, None)

    def __enter__(self) -> JupyterREPL:
        return self

    def __exit__(self, *_error: object) -> None:
        self.cleanup()

    # ---- beyond the protocol ----

    @property
    def locals(self) -> dict[str, Any]:
        """The code's variables; in the profile `rlm` also `answer`, as rlms' environments have it."""
        found = {name: value for name, value in self._namespace.items() if not name.startswith("_")}
        if self.profile == "rlm" and self._open:
            found["answer"] = self._namespace.answer
        return found

    def record(self, call: Any) -> None:
        """Adds a record to `rlm_calls`, in the place of the call that is being answered."""
        number = calling.get()
        with self._call_lock:
            place = bisect(self._call_numbers, number)
            self._call_numbers.insert(place, number)
            self.rlm_calls.insert(place, call)

    def _begin_calls(self) -> None:
        with self._call_lock:
            self.rlm_calls, self._call_numbers = [], []

    def _need_open(self) -> None:
        if not self._open:
            raise RuntimeError("this JupyterREPL was cleaned up: make another, or call setup()")

    def _need_idle(self, advice: str) -> None:
        if self._callbacks.turn is not None:
            raise RuntimeError(f"this JupyterREPL runs code already: {advice}")

    def _give(self, name: str, value: Any) -> None:
        before = dict(self._namespace.globals)
        self._namespace.assign(name, value)
        after = list(self._namespace.globals.items())
        self._sync.give({name} | {other for other, now in after if before.get(other, MISSING) is not now})

    def _take_turn(self, run: _Run, code: str, turn: kernel.Turn) -> Result:
        self._need_idle("callbacks and code need one of their own")
        begun = perf_counter()
        turn.begin()
        try:
            self._begin_calls()
            self._callbacks.turn = turn
            self._run(run, code, turn)
            self.last_result = result = self._report(run, perf_counter() - begun)
        finally:
            turn.end()
            self._callbacks.turn = None
            kernel.serving.set(turn.parent)
        return result

    def _run(self, run: _Run, code: str, turn: kernel.Turn) -> None:
        namespace, shell = self._namespace, kernel.find_shell()
        self._sync.begin(shell)
        self._restore()
        namespace.final = MISSING
        self._helpers.begin_cell()
        if self.workdir is not None:
            turn.folder = os.getcwd()
        try:
            with ExitStack() as stack:
                stack.enter_context(kernel.in_folder(turn, self.workdir))
                stack.enter_context(kernel.loop_suspended())
                stack.enter_context(self._emitter.capturing(turn, self._max_output_length))
                try:
                    self._run_captured(run, code, shell, turn)
                finally:
                    run.interrupts.hold()
                    turn.end()
        finally:
            self._restore()
            self._sync.end(None if turn.is_orphan else shell)

    def _run_captured(self, run: _Run, code: str, shell: Any, turn: kernel.Turn) -> None:
        try:
            codes, has_magics = self._prepare(code, shell)
            if has_magics and turn.root.thread != main_thread().ident:
                raise RuntimeError("magics work on what the whole notebook sees: run this code in its main thread")
            run.interrupts.allow()
            if self.cell_timeout is not None:
                turn.limit = kernel.TimeLimit(self.cell_timeout, run.interrupts.strike)
            try:
                with nullcontext() if turn.limit is None else turn.limit:
                    run.value = self._run_cell(codes, shell if has_magics else None, turn)
            finally:
                try:
                    self._namespace.take_answer()  # may run user code, and so may the lines below
                finally:
                    self._end_tasks()
        except Submitted:
            pass
        except BaseException as error:
            run.error = error
            if run.interrupts.timed_out and isinstance(error, KeyboardInterrupt):
                message = (
                    f"the code ran for longer than {self.cell_timeout:g} seconds (cell_timeout); variables are kept"
                )
                run.error = TimeoutError(message).with_traceback(error.__traceback__)
        run.describe(self._max_output_length)

    def _prepare(self, code: str, shell: Any) -> tuple[list[CodeType], bool]:
        filename = f"<cell {next(_numbers)}>"
        self._sources.add(filename, code)
        codes, has_magics = compile_code(code, filename, shell)
        if awaits(codes):
            self._loops.get_event_loop()  # made here, where no interrupt can leave it half made
        return codes, has_magics

    def _run_cell(self, codes: list[CodeType], shell: Any, turn: kernel.Turn) -> str | None:
        module = self._namespace.module
        with nullcontext() if shell is None else kernel.shell_namespace(turn, shell, module):
            names = vars(module)
            value = self._loops.run_cell(run_async(codes, names)) if awaits(codes) else run(codes, names)
        show = PROFILES[self.profile].show
        return None if value is None or show is None else show(value)

    def _end_tasks(self) -> None:
        if cancelled := self._loops.end_cell():
            tasks = "1 background task was" if cancelled == 1 else f"{cancelled} background tasks were"
            self._emitter.streams[1].write(f"sandglass: {tasks} cancelled at the end of the cell\n")

    def _restore(self) -> None:
        """Puts helpers and builtins back, whatever code did to them."""
        self._namespace.restore()
        shown = self._namespace.globals["__builtins__"]
        shown.update(self._builtins)
        for added in shown.keys() - self._builtins.keys():
            del shown[added]

    def _report(self, run: _Run, seconds: float) -> Result:
        stdout, stderr = (self._emitter.text(name) for name in ("stdout", "stderr"))
        if run.message is not None and PROFILES[self.profile].final_is_text:
            stderr += f"\n{run.message}"  # the controllers of this profile show the model nothing else
        final = self._namespace.final
        return Result(
            stdout=stdout,
            stderr=stderr,
            error=run.message,
            error_type=None if run.error is None else type_name(run.error),
            traceback=run.traceback,
            result=None if run.value is None else kept(run.value, self._max_output_length),
            locals=self.locals,
            execution_time=seconds,
            final_answer=None if final is MISSING else unwrapped(final),
            rlm_calls=self.rlm_calls,
        )


class _Run:
    """The current execution."""

    def __init__(self) -> None:
        self.interrupts = kernel.Interrupts()
        self.value: str | None = None
        self.error: BaseException | None = None
        self.message: str | None = None
        self.traceback: str | None = None

    def describe(self, limit: int) -> None:
        """Describes the error, which may run code of the user's."""
        if self.error is None:
            return
        self.interrupts.allow()
        try:
            message, traceback = describe(self.error)
        except BaseException as error:  # an interrupt
            self.error = error
            message = traceback = type_name(error)
        self.message, self.traceback = kept(message, limit), kept(traceback, limit)


def _names(option: str, value: Iterable[str]) -> frozenset[str]:
    names = [value] if isinstance(value, str) else list(value)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
            raise ValueError(f"{option}: {short(name, 100)} is no name of a variable")
    if isinstance(value, str):
        raise ValueError(f"{option} is a list of names: [{value!r}]")
    return frozenset(names)


def _index(wanted: int | None, used: Iterable[int]) -> int:
    if wanted is None:
        return max(used, default=-1) + 1
    if wanted < 0:
        raise ValueError(f"an index is 0 or more, not {wanted}")
    return wanted

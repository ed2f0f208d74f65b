"""Runs the own tests of the libraries with the adapters in place of the libraries' classes. docs/python-adapters.md has the results.

The tests are not in the libraries' wheels: clone the repositories at the same version. The source archives of rlms and
openai-agents have them, too. Some of the tests also import docker, pandas and litellm, and those of dspy look for a
program of the name deno, which is never run.

    export PYTHONPATH=…/pyodide-glue/python:…/tests/adapters SANDGLASS_HOST=…/sandglass-host
    cd rlms-0.1.3/tests
    python -m pytest -p conformance --adapter rlms test_local_repl.py test_local_repl_persistent.py test_rlm_query.py \\
        test_multi_turn_integration.py test_subcall.py test_depth_metadata.py
    cd dspy-3.3.1     # its own dspy is in this folder, and is the one that is tested
    python -m pytest -p conformance --adapter dspy --deno tests/primitives/test_python_interpreter.py \\
        tests/predict/test_rlm.py tests/predict/test_code_act.py tests/predict/test_program_of_thought.py tests/flex tests/callback
    cd smolagents-1.26.0
    RUN_ALL=1 python -m pytest -p conformance --adapter smolagents \\
        tests/test_remote_executors.py::TestDockerExecutorIntegration \\
        tests/test_local_python_executor.py::TestLocalPythonExecutor
    cd openai_agents-0.24.0/tests/sandbox
    python -m pytest -p conformance --adapter openai test_extract.py test_run_cwd.py test_runtime.py test_session_manager.py \\
        test_posix_tool_paths.py test_recursive_removal_compatibility.py capabilities/test_filesystem_capability.py

Tests that do not apply are left out, with the reason below. Many of openai-agents need no sandbox, and the summary says
how many do. The standard tests for deepagents are in test_deepagents.py.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Literal

import pytest

_DENO = "about Deno, Pyodide, and the options and private methods of PythonInterpreter"
_JSON = "about limits of JSON: None becomes an empty text, and NaN a text"
_LOCAL = "about the folder and the interpreter of LocalREPL, in the same process"
_MOUNT = "about mounts, which a sandbox without network has none of"
_UNIX = "about the paths, the ports, the confinement on macOS and the users of UnixLocalSandboxClient"
_AST = "about the evaluator of LocalPythonExecutor: its list of imports, its texts, functions as results"

NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "dspy": {
        **dict.fromkeys(
            (
                *("test_enable_", "test_read_file_access_control", "test_interpreter_security_filesystem_access"),
                *(
                    "test_default_runner_",
                    "test_default_command_",
                    "test_custom_deno_",
                    "test_deno_",
                    "test_explicit_deno",
                ),
                *(
                    "test_rejects_mounts_",
                    "test_rejects_alias_",
                    "test_rejects_write_paths_",
                    "test_extract_parameters",
                ),
                *("test_pydantic_json_values_", "test_json_mode_", "test_unserializable_pydantic_variable_"),
                *("test_process_death_", "test_protocol_failure_", "test_request_ids_", "test_guest_prototype_"),
                *("test_failed_health_check_", "test_small_variable_not_", "test_large_variable_threshold_"),
                *("test_out_of_band_", "test_id_less_", "test_execution_instructions_are_", "test_start_prewarms_"),
                *("test_start_is_idempotent", "test_no_network_access", "test_handle_tool_call_reports_"),
                *("test_pot_evaluate_creates_one_", "test_default_is_sandbox", "test_nested_rlm_tool_provenance"),
            ),
            _DENO,
        ),
        **dict.fromkeys(("test_tool_returning_none", "test_tool_returning_nan_"), _JSON),
    },
    "openai": {
        **dict.fromkeys(("test_unix_local_client_delete_", "test_runner_preserves_unix_local_lifecycle_"), _MOUNT),
        **dict.fromkeys(
            (
                *("test_unix_local_confined_", "test_unix_local_darwin_", "test_unix_local_virtual_environment_"),
                *("test_unix_local_exec_", "test_unix_local_recursive_remove_as_user_"),
                *("test_unix_local_client_rewrites_", "test_unix_local_resolve_exposed_port_"),
            ),
            _UNIX,
        ),
    },
    "rlms": {"test_temp_dir_": _LOCAL},
    "smolagents": {
        **dict.fromkeys(
            ("test_additional_authorized_imports_", "test_evaluate_assign_error", "test_function_def_"), _AST
        ),
        **dict.fromkeys(("test_initialization", "test_cleanup_on_deletion"), "about containers of Docker"),
    },
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--adapter", choices=sorted(NOT_APPLICABLE), required=True)


def pytest_configure(config: pytest.Config) -> None:
    _REPLACE[config.getoption("--adapter")]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = tuple(NOT_APPLICABLE[config.getoption("--adapter")])
    left_out = [item for item in items if item.name.startswith(names)]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    _used.append(0)
    try:
        yield
    except BaseException:
        _results["failed"] += 1
        raise
    _results["passed"] += bool(_used[-1])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any(_used):
        terminalreporter.write_line(f"with the adapter: {dict(_results)}")


_used: list[int] = []
_results: Counter[str] = Counter()


def _dspy() -> None:
    from dspy import PythonInterpreter

    from sandglass.adapters import DspyInterpreter

    def new(_: type, *args: Any, **kwargs: Any) -> DspyInterpreter:
        return DspyInterpreter(*args, **kwargs)

    PythonInterpreter.__new__ = new


def _openai() -> None:
    import agents.sandbox.sandboxes as sandboxes
    import agents.sandbox.sandboxes.unix_local as unix_local
    import tests.sandbox._filesystem_test_session  # noqa: F401 (a double, which stays the library's own)

    from sandglass.adapters import openai_agents

    # Tests look at the workspace from outside, and at folders of their own. So it is not isolated here.
    options = {"backend": "subprocess", "python": sys.executable}

    class State(openai_agents.SandglassSessionState):
        type: Literal["unix_local"] = "unix_local"
        workspace_root_owned: bool = False

    class Session(openai_agents.SandglassSession):
        def __init__(self, state: State, _: object = None) -> None:
            super().__init__(state, options)
            if _used:
                _used[-1] += 1

        @classmethod
        def from_state(cls, state: State) -> Session:
            return cls(state=state)

        async def _ask(self, *args: Any, **kwargs: Any) -> Any:
            await self.open()  # tests use sessions that were not started
            return await super()._ask(*args, **kwargs)

    class Client(openai_agents.OpenAIAgentsSandboxClient):
        backend_id = "unix_local"

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**options, **kwargs)

    for module in (sandboxes, unix_local):
        module.UnixLocalSandboxClient = Client
    unix_local.UnixLocalSandboxSession = openai_agents.SandglassSession = Session
    unix_local.UnixLocalSandboxSessionState = openai_agents.SandglassSessionState = State


def _rlms() -> None:
    import rlm.environments
    import rlm.environments.local_repl

    from sandglass.adapters.rlms import SandboxEnv

    rlm.environments.LocalREPL = rlm.environments.local_repl.LocalREPL = SandboxEnv


def _smolagents() -> None:
    import docker
    import smolagents.local_python_executor as local
    import smolagents.remote_executors as remote

    from sandglass.adapters import SmolagentsExecutor

    def made(*_: Any, **__: Any) -> SmolagentsExecutor:
        executor = SmolagentsExecutor(backend="subprocess", python=sys.executable)  # a Python with numpy and Pillow
        executor.delete = executor.cleanup
        return executor

    local.LocalPythonExecutor = remote.DockerExecutor = made
    docker.from_env = lambda: None  # no engine is asked


_REPLACE: dict[str, Callable[[], None]] = {"dspy": _dspy, "openai": _openai, "rlms": _rlms, "smolagents": _smolagents}

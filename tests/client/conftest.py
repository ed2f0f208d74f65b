"""The client of the Python package against the real program, `sandglass-host rpc`.

`npm test` builds it, or `cargo build -p sandglass-cli`. SANDGLASS_HOST names another one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_host import PLAIN

from sandglass import Sandbox


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """A sandbox that the tests of a module share: none depends on what is in it."""
    with Sandbox(**PLAIN) as sandbox:
        sandbox.initialize(None)
        yield sandbox

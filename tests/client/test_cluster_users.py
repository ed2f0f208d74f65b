"""The model of the soak: it forgives what servers may lose, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_users import Balancer, Forgiving, Unanswered, Wrong


class Scripted(Balancer):
    """A cluster whose answers are written down. Cells run in one place, which a test may change."""

    def __init__(self) -> None:
        super().__init__([], 0)
        self.seen: list[int] = []
        self.id = 0
        self.status = "kept"
        self.is_woken = False
        self.refusal: Unanswered | None = None

    def ask(self, method: str, path: str, body: Any) -> Any:
        if path == "/v1/sessions":
            return {"id": "s"}
        if method == "GET":
            return {"suspended": False}
        if self.refusal is not None:
            raise self.refusal
        self.id += 1
        self.seen = [*self.seen, int(body["code"].split(" + [")[1].split("]")[0])]
        result = repr(("context 0", self.seen, self.is_woken))
        told = {"outcome": "ok", "id": self.id, "result": result, "state": {"status": self.status}}
        self.status, self.is_woken = "kept", False
        return told

    def goes_back_to(self, cells: int, status: str) -> None:
        self.seen, self.id, self.status, self.is_woken = self.seen[:cells], cells, status, True


@pytest.fixture
def cluster() -> Scripted:
    return Scripted()


@pytest.fixture
def user(cluster: Scripted, tmp_path: Path) -> Forgiving:
    user = Forgiving(cluster, 0, tmp_path / "ledger")
    user.stop_waiting()
    for _ in range(3):
        user.act()
    return user


def test_a_session_that_never_slept_may_lose_its_last_cells_and_say_so(cluster: Scripted, user: Forgiving) -> None:
    cluster.goes_back_to(1, "restored")
    user.act()
    assert cluster.counts["restored"] == 1


def test_cells_are_not_lost_without_a_word(cluster: Scripted, user: Forgiving) -> None:
    cluster.goes_back_to(2, "kept")
    with pytest.raises(Wrong):
        user.act()


def test_what_slept_is_not_lost(cluster: Scripted, user: Forgiving) -> None:
    cluster.is_woken = True
    user.act()
    cluster.goes_back_to(2, "restored")
    with pytest.raises(Wrong, match="stored"):
        user.act()


def test_a_session_that_slept_is_not_gone(cluster: Scripted, user: Forgiving) -> None:
    cluster.refusal = Unanswered("not found", 404)
    user.act()
    cluster.refusal, cluster.is_woken = None, True
    cluster.seen, cluster.id = [], 0
    user.act()
    cluster.refusal = Unanswered("not found", 404)
    with pytest.raises(Wrong, match="was stored, and is lost"):
        user.act()


def test_numbers_of_executions_do_not_go_back(cluster: Scripted, user: Forgiving) -> None:
    cluster.id = 1
    with pytest.raises(Wrong, match="went back"):
        user.act()


def test_a_cell_of_which_nobody_knows_may_have_run_once(cluster: Scripted, user: Forgiving) -> None:
    cluster.refusal = Unanswered("the connection broke")
    user.act()
    cluster.refusal = None
    cluster.seen = [*cluster.seen, 3]
    user.act()
    assert cluster.seen == [0, 1, 2, 3, 4]
    cluster.seen = [*cluster.seen, 3]
    with pytest.raises(Wrong):
        user.act()


def test_cells_that_ran_twice_or_not_at_all_show_in_the_ledger(user: Forgiving, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("0\n1\n2\n")
    user.checks_ledger()
    ledger.write_text("0\n1\n1\n2\n")
    with pytest.raises(Wrong, match=r"\[1\] ran twice"):
        user.checks_ledger()
    ledger.write_text("0\n2\n")
    with pytest.raises(Wrong, match=r"\[1\] were answered"):
        user.checks_ledger()

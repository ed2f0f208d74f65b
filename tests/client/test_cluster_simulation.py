"""The simulation of large clusters."""

from __future__ import annotations

import sys

import pytest
from client_host import ROOT

sys.path.insert(0, str(ROOT / "scripts/bench/cluster"))

from simulate import ASLEEP, Settings, Simulation


@pytest.mark.parametrize("placement", ["two", "random"])
@pytest.mark.parametrize("seed", range(5))
def test_no_session_is_lost_or_in_two_places(seed: int, placement: str) -> None:
    settings = Settings(400, 7, seed, placement, death_seconds=50, rest_seconds=600)
    simulation = Simulation(settings)
    counts = simulation.run()
    assert sum(simulation.awake) + simulation.place.count(ASLEEP) == settings.sessions
    assert sum(counts.cells_of) == counts.cells
    assert sum(counts.wakes_of) == counts.wakes <= counts.cells
    assert sum(counts.forwards_of) == counts.forwards
    # It is the seed that decides, and nothing else.
    assert Simulation(settings).run() == counts


def test_two_choices_spread_sessions_better_than_one() -> None:
    most = [Simulation(Settings(20_000, 20, placement=placement)).run().most_awake for placement in ("two", "random")]
    assert most[0] < most[1]

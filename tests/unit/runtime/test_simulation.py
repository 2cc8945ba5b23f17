"""Workers of a group under faults and interleavings that a seed decides: all is learned once, and nothing stalls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connectors.kafkagroup import PythonGroup
from streamdp import LDPASGDRegressor
from streamdp.data.records import Shard
from streamdp.ledger.charges import Charges
from streamdp.runtime.worker import Worker
from streamdp.store.snapshot import Part, Snapshot
from streamdp.store.store import Store
from streamdp.store.tables import OF_SHARD, named
from tests.support.memory_store import MemoryStore
from tests.support.schedules import short_schedule
from tests.support.shards import CAP, check_exact, streams
from tests.support.simulation import PointedStore, Simulation, StalledError


def model(store: Store) -> LDPASGDRegressor:
    return LDPASGDRegressor(features=["a", "b"], budget="mu=1", ledger=store.ledger)


def simulate(path: Path, seed: int, **options: Any) -> Simulation:
    given = streams(2, 480, seed)
    open_store = partial(PointedStore, path, "job", "f", cap=CAP, shared=True)
    simulation = Simulation(open_store, given, model, seed=seed, **options).run()
    check_exact(path, given)
    return simulation


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_faults_and_interleavings_of_a_group(tmp_path: Path, seed: int) -> None:
    simulate(tmp_path / "a.db", seed)


@pytest.mark.slow
def test_many_short_schedules() -> None:
    for seed in range(60):
        short_schedule(seed)


@pytest.mark.campaign
@pytest.mark.parametrize("hundred", range(1, 6))
def test_many_faults_and_interleavings_of_a_group(tmp_path: Path, hundred: int) -> None:
    for seed in range(100 * hundred, 100 * hundred + 100):
        simulate(tmp_path / f"{seed}.db", seed, workers=2 + seed % 2, faults=seed % 25)


def test_a_seed_is_one_schedule(tmp_path: Path) -> None:
    runs = [simulate(tmp_path / f"{run}.db", 2).scheduler for run in range(2)]
    assert runs[0].told == runs[1].told != []
    assert runs[0].trace == runs[1].trace


def stalls(seed: int) -> bool:
    try:
        short_schedule(seed, workers=1)
    except StalledError:
        return True
    return False


def test_the_stall_is_found_if_a_rebalance_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its fix: `PythonGroup` does not mark a rebalance that began in an earlier poll as needed."""
    assert not any(map(stalls, range(10)))
    monkeypatch.setattr(PythonGroup, "_finish_rejoin", lambda _: None)
    assert any(map(stalls, range(10)))


def test_a_store_in_memory_without_fences_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfenced(store: MemoryStore, parts: Mapping[Shard, Part], within: None) -> dict[Shard, Snapshot | None]:
        for shard, part in parts.items():
            epoch, seq, _ = store.rows[shard]
            store.rows[shard] = (epoch, seq + 1, part)
        return {shard: store.load(shard) for shard in parts}

    monkeypatch.setattr(MemoryStore, "commit_parts", unfenced)
    with pytest.raises(AssertionError, match="went back"):
        short_schedule(12)


def test_a_store_without_fences_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier owner commits after its shard has gone to another one."""
    write = Store._write

    def unfenced(store: Store, shard: Shard, part: Part, now: float) -> bool:
        newest, claim = f"SELECT epoch, seq FROM shards WHERE {OF_SHARD}", store._claims[shard]
        ((claim.epoch, claim.seq),) = store._connection.fetch(newest, named(store.job, shard))
        return write(store, shard, part, now)

    monkeypatch.setattr(Store, "_write", unfenced)
    with pytest.raises(AssertionError, match="went back"):
        simulate(tmp_path / "a.db", 6)


def test_spends_that_outlive_their_shard_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that loses a shard keeps the spends of its records, and commits them when it gets the shard again."""
    monkeypatch.setattr(Charges, "without", lambda charges, _: charges)
    monkeypatch.setattr(Worker, "lost", Worker._drop)
    with pytest.raises(AssertionError):
        simulate(tmp_path / "a.db", 5)

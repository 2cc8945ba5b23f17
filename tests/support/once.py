"""Workers that are killed at random moments: each person is charged once, learned once, and nobody is refused."""

import random
from functools import partial
from pathlib import Path
from typing import Any

from streamdp import PanPrivateRegressor, WindowedRegressor, stats
from streamdp.data.records import Shard
from streamdp.data.subjects import subjects_bytes
from streamdp.store.store import Store
from tests.support.memory import Entry
from tests.support.shards import SIZE, found
from tests.support.simulation import PointedStore, Simulation

CAPS = {"batches": "mu=1", "windows": "eps=1,delta=1e-6", "statistics": "mu=1"}
"""One record a person."""
BOUNDS = {"a": (-1.0, 1.0), "b": (-1.0, 1.0)}


def batches(store: Store) -> Any:
    return PanPrivateRegressor(features=["a", "b"], budget="mu=1", batch_size=SIZE, ledger=store.ledger)


def windows(store: Store) -> Any:
    return WindowedRegressor(
        features=BOUNDS,
        target=(-1.0, 1.0),
        budget="eps=1,delta=1e-6",
        window=SIZE,
        items_per_user=1,
        method="private-range",
        ledger=store.ledger,
    )


def statistics(store: Store) -> Any:
    return stats.Statistics({"m": {"mean": "a"}}, BOUNDS, budget="mu=1", batch_size=SIZE, ledger=store.ledger)


KINDS = {"batches": batches, "windows": windows, "statistics": statistics}


def kill_workers(path: Path, kind: str, shards: int, seed: int, faults: int = 12) -> dict[str, int]:
    """Learn streams in which each person has one record, under faults of a seed; return counts, and how many died.

    Of windows, less than one may be left in each shard. The store is at the path.
    """
    rng = random.Random(seed)
    size = SIZE * max(2, 24 // shards)

    def record(person: str) -> Entry:
        return {"a": rng.uniform(-1, 1), "b": rng.uniform(-1, 1)}, rng.uniform(-1, 1), person, None

    given = {Shard("topic", s): [record(f"{s}-{i}") for i in range(size)] for s in range(shards)}
    opened = partial(PointedStore, path, "job", "f", cap=CAPS[kind], shared=True)
    options: dict[str, Any] = {"deadly": 0.5, "idle_seconds": 5.0, "left": SIZE - 1 if kind == "windows" else 0}
    simulation = Simulation(opened, given, KINDS[kind], seed=seed, faults=faults, **options).run()
    last = found(path)
    with Store(path, "job", "f", cap=CAPS[kind], shared=True) as store:
        people = [item[2] for stream in given.values() for item in stream]  # type: ignore[index]
        store.ledger.prepare(subjects_bytes(people))  # type: ignore[union-attr]
        spent = [store.ledger.spent(person).records for person in people]  # type: ignore[union-attr]
    return {
        "people": len(people),
        "learned": sum(snapshot.counts.learned for snapshot in last.values()),
        "charged": sum(spent),
        "most": max(spent),
        "left": sum(len(given[shard]) - snapshot.position["index"] for shard, snapshot in last.items()),
        "refused": sum(snapshot.counts.refused for snapshot in last.values()),
        "died": sum("dies" in told for told in simulation.scheduler.told),
        "faults": len(simulation.scheduler.told),
    }

"""A short schedule of a group of workers, over a store that only remembers."""

import random
from functools import partial
from typing import Any

from streamdp.data.records import Shard
from tests.support.memory import BAD, Entry
from tests.support.memory_store import MemoryDatabase, Remembering, check_remembered
from tests.support.simulation import PointedMemory, Simulation


def short_schedule(seed: int, **options: Any) -> Simulation:
    """Run the schedule of a seed, and check that each record was learned once."""
    rng = random.Random(seed)
    given: dict[Shard, list[Entry]] = {
        Shard("topic", s): [BAD if rng.random() < 0.1 else ({}, 100.0 * s + i, None, None) for i in range(60)]
        for s in range(2)
    }
    database = MemoryDatabase()
    terms: dict[str, Any] = {"seed": seed, "faults": seed % 8, "commit_records": 30} | options
    simulation = Simulation(partial(PointedMemory, database), given, lambda _: Remembering(), **terms).run()
    check_remembered(database, given)
    return simulation

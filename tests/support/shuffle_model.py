"""A small model for the three parties of the shuffle protocol, its first announcement, and what was forwarded."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from streamdp import ShuffleClassifier
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.shuffle_wire import Assembly, Place, read_part, write_announcement

PEOPLE = 20


def model(**changes: Any) -> ShuffleClassifier:
    given: dict[str, Any] = {
        "features": ["a", "b"],
        "method": "ac-sa",
        "budget": "eps=4,delta=1e-4",
        "horizon": 4 * PEOPLE,
        "batch_size": PEOPLE,
    }
    return ShuffleClassifier(**given | changes)


def announced(**changes: Any) -> bytes:
    """What a learner with these changes would announce first."""
    learner = model(**changes)
    return write_announcement(Agreement(learner).announcement(learner.batch, learner.randomizer.point))


def forwarded(values: Iterable[bytes], agreed: Agreement) -> dict[Place, list[tuple[int, list[int]]]]:
    """By batch: how many people and which numbers of ones, for each time that it was forwarded whole."""
    found, assemblies = defaultdict(list), {}
    for value in values:
        part = read_part(value, agreed.digest)
        assembly = assemblies.setdefault(part.name, Assembly(agreed.params(part.place)))
        if (mixed := assembly.add(part)) is not None:
            found[part.place].append((mixed.users, [int(np.unpackbits(row).sum()) for row in mixed.bits]))
    return found

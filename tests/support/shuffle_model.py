"""A small model for the three parties of the shuffle protocol, and the learner's first announcement."""

from __future__ import annotations

from typing import Any

from streamdp import ShuffleClassifier
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.shuffle_wire import write_announcement

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

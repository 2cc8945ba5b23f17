"""States of two stores that learned the same, and what estimators hold in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamdp.store.snapshot import Snapshot


def assert_same_states(ours: Snapshot, theirs: Snapshot) -> None:
    """All numbers are the same. Each store has a ledger of its own, with a random mark and the same caps."""
    assert ours.state.keys() == theirs.state.keys()
    for name, value in theirs.state.items():
        if name == "caps":
            assert list(ours.state[name]["charged"].values()) == list(value["charged"].values())
        else:
            np.testing.assert_array_equal(ours.state[name], value, err_msg=name)


def buffer_of(model: Any) -> np.ndarray:
    """The row and the target in the buffer through which an estimator learns single records."""
    return model._features.buffer


def arrays_of(model: Any) -> list[np.ndarray]:
    """All arrays of a learner of local reports."""
    *own, units = model.learner.arrays
    return [*own, *units]


def units_of(model: Any) -> Any:
    """The table of the units of a learner of local reports, with the counts and sums that decide about them."""
    return model.learner.arrays.units


def give_words(model: Any, words: Any) -> None:
    """Let these words be the source of a model's noise, also where single records have a way of their own."""
    model.learner.rng, model.learner.fast = words, None

"""States of two stores that learned the same, and what estimators hold in memory: each internal by one name."""

import math
import pickle
from typing import Any

import numpy as np

from streamdp.aggregation.local_mean import UserMean
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


def report_arrays(model: Any) -> Any:
    """The arrays of a learner of local reports by name: `Arrays`."""
    return model.learner.arrays


def spec_of(model: Any) -> np.ndarray:
    """The loss as compiled code knows it."""
    return model.learner.spec


def outward(model: Any, theta: np.ndarray) -> np.ndarray:
    """Weights in the units of the columns and the target."""
    return model.learner.units.outward(theta)


def mechanism_of(model: Any, budget: Any) -> Any:
    """What randomises a report with this budget."""
    return model.learner.mechanism_of(budget)


def arrays_of(model: Any) -> list[np.ndarray]:
    """All arrays of a learner of local reports."""
    *own, units = report_arrays(model)
    return [*own, *units]


def units_of(model: Any) -> Any:
    """The table of the units of a learner of local reports, with the counts and sums that decide about them."""
    return report_arrays(model).units


def give_words(model: Any, words: Any) -> None:
    """Let these words be the source of a model's noise, also where single records have a way of their own."""
    model.learner.rng, model.learner.fast = words, None


def give_mean(model: Any, users: int, coarse: int) -> None:
    """Let a batch have so many users, of which the first ones answer the coarse question, in three dimensions."""
    learner = model.learner
    sensitivity = learner.mean.sensitivity
    learner.mean = UserMean(learner.budget, math.sqrt(2), sensitivity, 3, users, 0.1, coarse)
    learner._begin_batch()


def words_of(model: Any) -> Any:
    """The source of a model's noise."""
    return model.learner.rng


def loss_of(model: Any) -> Any:
    """The loss that a model learns, with the weighting that its trust asks for."""
    return model.learner.problem.loss


def steps_of(model: Any) -> Any:
    """What makes the steps of a learner in batches: a `BatchSteps`."""
    return model.learner.batch_steps


def middle_of(model: Any) -> np.ndarray:
    """Where the vectors of the open batch are taken (d,)."""
    return model.learner.middle


def region_of(model: Any) -> Any:
    """The domain with what a plan needs of it: a `Region`."""
    return model.learner.region


def curvature_of(model: Any) -> Any:
    """What vectors with curvature are, in Newton's method; else None."""
    return model.learner.curvature


def open_sum(model: Any) -> np.ndarray:
    """What the open batch adds up to, noise included, as whole numbers: an array that changes in place."""
    return model.learner.total


def noise_of(model: Any) -> Any:
    """The sum of a pan-private batch, which draws its noise: a `GridSum`."""
    return model.learner.sum


def params_of(model: Any) -> Any:
    """The parameters of a shuffled sum: a `VectorSum`."""
    return model.learner.params


def pending_of(model: Any) -> int:
    """How many records are in memory, of which nothing was released."""
    pending: int = model.learner.pending
    return pending


def method_of(model: Any) -> Any:
    """What `method="auto"` means for a model: a name, or what learns windows."""
    return model.learner.method


def probes_of(model: Any) -> Any:
    """What the open batch sums at other points, if it does: a `Probes`."""
    return model.learner.probes


def people_of(model: Any) -> Any:
    """The people whose records are held until they are complete."""
    return model.learner.people


def path_of(model: Any) -> np.ndarray:
    """Theta, and in original units the answer and the average, of a learner of local reports (3, d)."""
    state: np.ndarray = report_arrays(model).state
    return state


def kept(model: Any) -> bytes:
    """All that a record can change: what is counted and learned, an open batch, unused words, and the buffer."""
    learner = model.learner
    steps = learner.batch_steps
    learned = learner.learned() if steps is None else steps.learned()
    batch = (learner.total, learner.open.taken) if hasattr(learner, "total") and learner.open is not None else ()
    counts = model.n_seen, model.n_refused, model.n_left_out, str(model.guarantee), learner.seen
    return pickle.dumps([counts, learned, batch, getattr(learner.rng, "words", 0), buffer_of(model)])

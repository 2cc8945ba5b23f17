"""How both loops learn a batch, count its records and check a state before its commit."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from streamdp.data.records import Batch
from streamdp.data.subjects import Dated
from streamdp.errors import ConfigError
from streamdp.privacy.release import JOINED, REFUSED
from streamdp.store.snapshot import Counts

if TYPE_CHECKING:
    from streamdp.estimators.estimator import Estimator


def total(counts: Counts) -> int:
    """The number of records that were counted: each is learned, refused, left out or unusable (dead letters)."""
    return counts.learned + counts.refused + counts.left_out + counts.dead_letters


def learn(estimator: "Estimator", batch: Batch, counts: Counts) -> Counts:
    """Learn a `batch` after the records in `counts`, and return the new counts.

    The `estimator` admits the records first. If this fails, nothing was learned and the call may be repeated.
    """
    seen, refused, left_out = estimator.n_seen, estimator.n_refused, estimator.n_left_out
    if len(batch):
        subjects: Any = batch.subjects
        if subjects is not None and batch.times is not None:
            subjects = [Dated(subject, time) for subject, time in zip(subjects, batch.times.tolist(), strict=True)]
        if batch.reports is None:
            outcome = estimator.learn_encoded(batch.X, batch.y, batch.budgets, subjects)
        else:
            outcome = _absorb(estimator, batch)
        if batch.on_learned is not None:
            batch.on_learned(outcome)
    return Counts(
        counts.learned + estimator.n_seen - seen,
        counts.refused + estimator.n_refused - refused,
        counts.dead_letters + len(batch.dead),
        counts.left_out + estimator.n_left_out - left_out,
    )


def _absorb(estimator: Any, batch: Batch) -> np.ndarray:
    """Absorb the reports of a batch. Returns what became of each, (n,)."""
    assert batch.reports is not None
    outcome = np.zeros(len(batch), dtype=np.uint8)
    for i, report in enumerate(batch.reports):
        refused = estimator.n_refused
        estimator.absorb(report, subject=None if batch.subjects is None else batch.subjects[i])
        outcome[i] = JOINED if estimator.n_refused == refused else REFUSED
    estimator.learner.close()  # what devices are asked next follows from all these reports
    return outcome


def check_finite(state: Mapping[str, object]) -> None:
    """Raise `ConfigError` if an array of a `state` is not finite: nothing could be learned from it any more."""
    if not all(np.isfinite(value).all() for value in state.values() if isinstance(value, np.ndarray)):
        raise ConfigError(
            "the model is no longer finite; the last commit is kept; set a smaller eta, or a bounded domain"
        )

"""What the parties agree on, each from the job alone: which batch follows which, and how each is summed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from streamdp.aggregation.shuffled_sum import VectorSum
from streamdp.errors import BudgetError, ConfigError, SchemaError
from streamdp.estimators import ShuffleClassifier, ShuffleRandomizer, ShuffleRegressor
from streamdp.privacy.guarantees import ApproxDP
from streamdp.protocol.shuffle_wire import Announcement, Place, read_announcement

Learning = ShuffleRegressor | ShuffleClassifier


class Agreement:
    """Held by each party, made by each for itself.

    Parameters
    ----------
    estimator
        A `ShuffleRegressor` or `ShuffleClassifier` with declared features. A copy without its state is kept.
    minimum_share
        Which share of a batch's people must have answered before anything is forwarded; 1: all.
    about
        Anything else that must be the same for all, such as a job's fingerprint.

    Raises `ConfigError` for another estimator, and where the calibration promises nothing to so small a share.
    """

    first: Place = (0, 0, 0)

    def __init__(self, estimator: Learning, minimum_share: float = 1.0, about: str = "") -> None:
        if not isinstance(estimator, ShuffleRegressor | ShuffleClassifier):
            raise ConfigError("a shuffler needs a ShuffleRegressor or a ShuffleClassifier")
        if estimator.features is None:
            raise ConfigError("a shuffler needs declared features: the first record's names would be one person's")
        if not 0 < minimum_share <= 1:
            raise ConfigError("minimum_share: expected a number above 0 and up to 1")
        self._estimator: Any = estimator.clone({"ledger": None})
        self.minimum_share = float(minimum_share)
        said = json.dumps([about, self.minimum_share, self._estimator._model()], default=str, sort_keys=True)
        self.digest = blake2b(said.encode(), digest_size=16, person=b"streamdp-shuffle").hexdigest()
        self._phase = (-1, -1)
        try:
            self.weakest(self.first)
        except BudgetError as error:
            raise ConfigError(f"minimum_share {self.minimum_share:g}: {error}") from None

    def _go(self, place: Place) -> Any:
        """The estimator at a batch. Raises `SchemaError` where the plan has no such batch."""
        estimator, (epoch, phase, step) = self._estimator, place
        if (epoch, phase) != self._phase:
            self._phase = (-1, -1)
            try:
                plan = estimator._plan_of(epoch) if 0 <= epoch < 64 else []
                if not 0 <= phase < len(plan):
                    raise SchemaError("there is no such batch")
                estimator._epoch, estimator._phase_number, estimator._plan = epoch, phase, plan
                estimator._begin_phase()
            except (ConfigError, BudgetError, OverflowError):
                raise SchemaError("there is no such batch: it would be too large") from None
            self._phase = (epoch, phase)
        if not 0 <= step < estimator.phase.steps:
            raise SchemaError("there is no such batch")
        estimator._walk.step = step
        return estimator

    def params(self, place: Place) -> VectorSum:
        """The sum that a batch's people take part in. Raises `SchemaError` where there is no such batch."""
        found: VectorSum = self._go(place)._params
        return found

    def needed(self, place: Place) -> int:
        """How many must have answered before the batch is forwarded."""
        return max(1, math.ceil(self.minimum_share * self.params(place).users - 1e-9))

    def weakest(self, place: Place) -> ApproxDP:
        """What protects a record where only as many answer as must."""
        params, needed = self.params(place), self.needed(place)
        return params.budget if needed == params.users else params.guarantee_for(needed)

    def after(self, place: Place) -> Place:
        """The batch that follows."""
        epoch, phase, step = place
        steps, phases = self._go(place).phase.steps, len(self._estimator._plan)
        if step + 1 < steps:
            return epoch, phase, step + 1
        return (epoch, phase + 1, 0) if phase + 1 < phases else (epoch + 1, 0, 0)

    def randomizer(self, place: Place, point: np.ndarray) -> ShuffleRandomizer:
        """A person's half for a batch: everything but the point is our own."""
        found: ShuffleRandomizer = replace(self._go(place).randomizer, point=point)
        return found

    def announcement(self, place: Place, point: np.ndarray) -> Announcement:
        """What the learner shows before a batch."""
        model, params = self._estimator._model(), self.params(place)
        return Announcement(self.digest, place, point, str(model["loss"]), self._features, params)

    @property
    def _features(self) -> tuple[str, ...]:
        return tuple(map(str, self._estimator._names))

    def accept(self, text: bytes) -> ShuffleRandomizer:
        """A device's half for a batch that was announced, if the announcement is what was agreed on.

        Raises `SchemaError` for what is no announcement or of a batch that is not in the plan, `BudgetError` for a sum
        that does not keep its budget, and `ConfigError` that says what differs from our own job.
        """
        said = read_announcement(text)
        ours = self.announcement(said.batch, said.point)
        theirs, params = said.params, ours.params
        for what, got, agreed in (
            ("budget", theirs.budget, params.budget),
            ("number of people", theirs.users, params.users),
            ("loss", said.loss, ours.loss),
            ("features", said.features, ours.features),
            ("sum", theirs, params),
            ("agreement (schema, model or minimum_share)", said.agreement, ours.agreement),
        ):
            if got != agreed:
                raise ConfigError(f"refused: the learner announces another {what} than this job has")
        return self.randomizer(said.batch, said.point)

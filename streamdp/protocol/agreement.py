"""What the parties agree on: which batch follows which, and the parameters of each batch's sum.

Each party derives the agreement from the job alone. See docs/shuffle_protocol.md for the argument why this is safe.
"""

import json
import math
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from streamdp.aggregation.vector_sum import VectorSum
from streamdp.data.records import Batch
from streamdp.errors import BudgetError, ConfigError, SchemaError, StreamDPError
from streamdp.estimators import ShuffleClassifier, ShuffleRegressor
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.privacy.guarantees import ApproxDP, amount
from streamdp.protocol.shuffle_wire import (
    AnnouncedSum,
    Announcement,
    Place,
    read_announcement,
    write_announcement,
)

Learning = ShuffleRegressor | ShuffleClassifier


class Agreement:
    """The agreement of one job.

    Each party makes its own; two agreements are the same if their digests are equal. It keeps a copy without state of
    the estimator, a `ShuffleRegressor` or `ShuffleClassifier` with declared features. At least `minimum_share` of a
    batch's people, in (0, 1], must answer before the batch is forwarded. `about` is anything else that must be the same
    for all parties, such as a job's fingerprint. Raises `ConfigError` for another estimator, and if the calibration
    gives no guarantee for so small a share.
    """

    first: Place = (0, 0, 0)

    def __init__(self, estimator: Learning, minimum_share: float = 1.0, about: str = "") -> None:
        if not isinstance(estimator, ShuffleRegressor | ShuffleClassifier):
            raise ConfigError("a shuffler needs a ShuffleRegressor or a ShuffleClassifier")
        if estimator.features is None:
            raise ConfigError(
                "a shuffler needs declared features: those of the first record would be one person's data"
            )
        if not 0 < minimum_share <= 1:
            raise ConfigError("minimum_share: expected a number above 0 and up to 1")
        self._estimator: Any = estimator.clone({"ledger": None})
        self.minimum_share = float(minimum_share)
        model = self._estimator.model_dict()
        self._loss = str(model["loss"])
        self.rounds: int | None = None if self._estimator.cohort is None else self._estimator.phase.steps
        """The number of rounds in which the same people answer; None: each record answers once."""
        parts = about, self.minimum_share, str(self._estimator.record_budget), model
        agreed = json.dumps(parts, default=str, sort_keys=True)
        self.digest = blake2b(agreed.encode(), digest_size=16, person=b"streamdp-shuffle").hexdigest()
        self._at: Place | None = None
        try:
            self.weakest(self.first)
        except BudgetError as error:
            raise ConfigError(f"minimum_share {self.minimum_share:g}: {error}") from None
        point = np.full(len(self._go(self.first).randomizer.point), -math.pi * 1e-300)
        self._longest = len(write_announcement(self.announcement(self.first, point))) + 1000

    def _go(self, place: Place) -> Any:
        """The estimator, set to a batch. Raises `SchemaError` if the plan has no such batch."""
        estimator = self._estimator
        if place != self._at:
            self._at = None
            try:
                estimator.learner.go(place)
            except (StreamDPError, ArithmeticError, TypeError, ValueError):
                raise SchemaError("there is no such batch, or it would be too large") from None
            self._at = place
        return estimator

    def params(self, place: Place) -> VectorSum:
        """The parameters of a batch's sum.

        Raises `SchemaError` if the plan has no such batch.
        """
        return self._go(place).randomizer.params

    def needed(self, place: Place) -> int:
        """The number of people who must answer before a batch is forwarded."""
        return max(1, math.ceil(self.minimum_share * self.params(place).users - 1e-9))

    def weakest(self, place: Place) -> ApproxDP:
        """The guarantee of a record if only the needed number of people answer."""
        params, needed = self.params(place), self.needed(place)
        return params.budget if needed == params.users else params.guarantee_for(needed)

    def willing(self, place: Place, records: Batch) -> np.ndarray:
        """Which records answer in a batch: (n,) of bool.

        A record with a budget of its own declines if it allows less than it spends if only the needed number of people
        answer.
        """
        if records.budgets is None:
            return np.ones(len(records), dtype=bool)
        spent = amount(self.weakest(place))
        return np.asarray(np.isnan(records.budgets) | (records.budgets >= spent))

    def after(self, place: Place) -> Place:
        """The next batch."""
        steps = self._go(place).learner.batch_steps
        self._at = None
        steps.skip()
        return steps.place

    def randomizer(self, place: Place, point: np.ndarray) -> ShuffleRandomizer:
        """What a device needs for its answer: all from this agreement, except the `point` (d,)."""
        return replace(self._go(place).randomizer, point=point)

    def announcement(self, place: Place, point: np.ndarray) -> Announcement:
        """The learner's announcement of a batch; the gradients are taken at `point` (d,)."""
        agreed = self._go(place).randomizer
        numbers = {name: getattr(agreed.params, name) for name in AnnouncedSum.model_fields}
        return Announcement.model_construct(
            format=1,
            agreement=self.digest,
            batch=place,
            point=point.tolist(),
            loss=self._loss,
            features=[str(name) for name in agreed.names],
            sum=AnnouncedSum.model_construct(**numbers),
        )

    def accept(self, text: bytes) -> ShuffleRandomizer:
        """What a device needs for its answer to an announcement, if its `text` obeys this agreement.

        Raises `SchemaError` if the text is no announcement or the plan has no such batch, and `ConfigError`, with what
        differs, if it does not obey this agreement. What the text demands is compared before anything is computed from
        it.
        """

        def same(what: str, got: object, agreed: object) -> None:
            if got != agreed:
                raise ConfigError(f"refused: the learner announces another {what} than this job has")

        announced = read_announcement(text, self._longest)
        point = np.array(announced.point)
        ours = self.announcement(announced.batch, point)
        same("budget", announced.sum.budget, ours.sum.budget)
        same("number of people", announced.sum.users, ours.sum.users)
        same("sum", announced.sum.model_dump(), ours.sum.model_dump())
        same("loss", announced.loss, ours.loss)
        same("features", announced.features, ours.features)
        same("agreement (schema, model or minimum_share)", announced.agreement, ours.agreement)
        randomizer = self.randomizer(announced.batch, point)
        if self.rounds is not None:
            inside = self._estimator.learner.region.project(randomizer.point)
            if not np.allclose(inside, randomizer.point, rtol=1e-9, atol=1e-9):
                raise ConfigError("refused: the learner announces a point outside of the domain")
        return randomizer

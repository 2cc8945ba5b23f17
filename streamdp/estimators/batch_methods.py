"""The estimators that learn in batches: their parameters, phases, intervals, and batches in several processes.

See `streamdp.learners.batches` and `divided`. Functions of an estimator are for the families that have some of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from streamdp.errors import ConfigError, NotAvailableError, check_level
from streamdp.estimators.estimator import Estimator
from streamdp.learners.batches import Batches
from streamdp.learners.divided import GatheredPart
from streamdp.learners.divided import learn_parts as learn_divided
from streamdp.learners.user_windows import Windows
from streamdp.optim.ac_sa import Phase
from streamdp.optim.planned import Planned


def batch(self: Estimator) -> tuple[int, int, int]:
    """The next batch: (epoch, phase, step) of a plan, or (0, 0, records or reports before it).

    Raises `NotAvailableError` before the features are known.
    """
    self._need_features("batch")
    assert self.learner.batch_steps is not None
    return self.learner.batch_steps.place


def interval(self: Estimator, level: float = 0.95) -> np.ndarray:
    """Return the (d, 2) confidence limits of theta from the released sums of batches or windows; nothing is spent.

    They hold for large numbers of records and a well-specified model (`streamdp.reading.batch_intervals`). They are
    around the averaged Newton step, and reach to theta, which is shrunk and kept in its domain. NaN: there
    are too few batches, as after `merged`, or the curvature is not known well enough.

    Parameters
    ----------
    level
        The confidence, above 0 and below 1.

    Raises `NotAvailableError` before the features are known, for a method without curvature and for a schema with
    `per`; `ConfigError` for another level.
    """
    return settling(self, level)[0]


def settling(self: Estimator, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Return `interval`, and NaN (d,): it is not known how many records give such parameters an interval.

    Parameters
    ----------
    level
        As for `interval`.

    Raises the errors of `interval`.
    """
    check_level(level)
    features, learner = self._need_features("interval"), self.learner
    assert isinstance(learner, Batches | Windows)
    learner.check_identified()
    found, unknown = learner.answer(), np.full(learner.problem.size(learner.p), np.nan)
    if found is None:
        return np.column_stack([unknown, unknown]), unknown
    if self.intercept:
        found = found.through(features.columns.units(1).outward)
    return learner.limits_around(found.answer, found.limits(float(level)), self.theta), unknown


def phase(self: Estimator) -> Phase:
    """The present phase of a plan: its batch size and steps.

    Raises `NotAvailableError` before the features are known, and for a method without a plan.
    """
    self._need_features("phase")
    if not isinstance(self.learner.batch_steps, Planned):
        raise NotAvailableError(f'phase: method="{self.learner.method_name}" has no plan')
    return self.learner.batch_steps.phase


@dataclass(eq=False, repr=False, kw_only=True)
class BatchEstimator(Estimator):
    """Parameters and methods of `PanPrivate*` and `Shuffle*`.

    Parameters
    ----------
    target
        The public bounds (low, high) of the target. With "newton", an intercept and no domain, theta begins in their
        middle, with half their width as Huber's scale, and the first batches look for both. None: it begins at 0, with
        the scale 1, which takes many more records for a target far from it.
    method
        "newton": averaged Newton steps from gradients and curvature, in batches that grow; no step size, horizon or
        domain is needed (see `optim.newton`). It takes "huber", "squared", "poisson", "logistic" and "softmax", without
        `clip`: only there is the sensitivity of the curvature proved (see `optim.curvature`). "ac-sa": the accelerated
        steps of the paper, planned from `horizon`, `domain`, `smoothness` and `strong_convexity`. "auto": "newton" if
        the loss has a curvature, else "ac-sa".
    domain
        The set that theta is projected to: an `L2Ball` or a bounded `Box`. If None, all of R^d with "newton", and
        L2Ball(5) with "ac-sa", whose steps are planned from its size.
    batch_size
        ... With "newton" all batches have this size, and if None they grow.
    horizon
        ... Not with "newton": a `ConfigError`.
    smoothness
        ... Not with "newton": a `ConfigError`.
    strong_convexity
        ... Not with "newton": a `ConfigError`.
    loss
        A name or a `Loss`: {losses}.
        With "ac-sa" a non-smooth loss is replaced by its Moreau envelope; another one that clips gradients needs
        `smoothness`.
    """

    method: Literal["auto", "newton", "ac-sa", "sgd"] = "auto"
    horizon: int | None = None
    batch_size: int | None = None
    smoothness: float | None = None
    strong_convexity: float = 0.0
    validation: Mapping[str, object] | None = None
    phase = property(phase)
    interval = interval
    settling = settling

    def _batches(self, what: str) -> Batches:
        self._need_features(what)
        assert isinstance(self.learner, Batches)
        return self.learner

    def gather_part(self, number: int, of: int) -> None:
        """From now on take one part of the records of each batch, for `take_records`, and learn nothing.

        Parameters
        ----------
        number, of
            Which part, from 0, of how many.

        Raises `NotAtBoundaryError` within a batch, and `ConfigError` with `validation` or with statistics beside the
        model, whose sums end with batches: none ends here.
        """
        if self.sides:
            raise ConfigError(
                "gather_part: records are gathered to be learned only: leave validation and statistics out"
            )
        self._exchange(GatheredPart(self._batches("gather_part"), number, of))

    def take_records(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the raw records (n, p) and (n,) of each batch since `gather_part`, and forget them.

        They are counted in `n_seen`. Of them, only sums (`part`) that the process which calls `learn_parts` alone can
        read may be passed on.
        """
        assert isinstance(self.learner, GatheredPart), "gather_part was called"
        learner, records = self.learner.records()
        self._exchange(learner)
        return records

    def part(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return what records add to the sum of the next batch, as whole numbers. Only `learn_parts` may read it.

        Parameters
        ----------
        X, y
            Records (n, p) and (n,) that were admitted and are counted elsewhere.

        Raises `NotAtBoundaryError` within a batch.
        """
        with self.learner.rng.lock:
            return self._batches("part").part(X, y)

    def learn_parts(self, sizes: Sequence[int], ask: Callable[[int, dict[str, object]], Iterable[np.ndarray]]) -> None:
        """Learn the next batches, whose records are in other processes.

        Parameters
        ----------
        sizes
            How many records each of them has, over all processes of `gather_part`.
        ask
            Called for each batch with records, with its number from 0 and the state in which `part` is to be computed,
            which was released. It returns what `part` returned, over all records of the batch; each array is
            overwritten when it is added.

        Raises `NotAtBoundaryError` within a batch, and `ConfigError` for a batch with more records than planned. After
        an error of it or of `ask`, load a state.
        """
        with self.learner.rng.lock:
            learn_divided(
                self._batches("learn_parts"), sizes, lambda number: ask(number, self.state_dict()), self._count
            )

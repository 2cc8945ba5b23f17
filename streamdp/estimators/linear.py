"""What all linear estimators share: loss, domain, the numbers that describe both to the compiled loops, and the state.

A subclass defines `_estimate`, the vector (d,) that predicts: coefficients by feature, the intercept, Huber's scale; K
blocks for K classes. For its state it defines `_learned`, which writes what was learned, and `_read`, which checks it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from streamdp.data.records import MOST_RECORDS
from streamdp.errors import ConfigError, NotAtBoundaryError, NotAvailableError, StreamDPError, check_path
from streamdp.estimators.base import StreamEstimator
from streamdp.estimators.features import Features
from streamdp.estimators.packing import Predictor
from streamdp.ledger.charged import CapHistory, read_history
from streamdp.optim.domains import Box, Domain, L2Ball, RealSpace
from streamdp.optim.losses import Huber, Loss, Squared, loss_for, without_shift
from streamdp.privacy.guarantees import parse_budget
from streamdp.validation.tasks import Task

FORMAT = 1
"""The format of states."""
_LARGEST_SCORE = 1e300


class LinearModel(StreamEstimator):
    """Loss, domain, weights and state of a linear predictor."""

    _losses: ClassVar[tuple[type[Loss], ...]]
    _default_domain: ClassVar[Domain] = RealSpace()
    _counts: ClassVar[tuple[str, ...]] = ("n_seen", "n_refused")
    """The attributes that count, in the order of the state."""
    _weighed_by: ClassVar[str] = "n_seen"
    """The count that `merged` weighs by."""

    _stays: bool = False
    """Whether what `_point` returns changes in place only, until `_predictor` is None again."""
    _predictor: Predictor | None = None
    """Predicts single records, if the estimate stays and there is one output. None: not made yet."""
    _index: dict[Any, float] | None = None
    """The encoded targets of the classes; None for numbers."""

    loss: str | Loss
    domain: Domain | None
    intercept: bool

    def _set_up(self) -> None:
        super()._set_up()
        if not isinstance(self.intercept, bool | np.bool_):
            raise ConfigError(f"intercept: expected True or False, got {self.intercept!r}")
        self._loss = self._resolve_loss()
        self._domain = self._default_domain if self.domain is None else self.domain
        if not isinstance(self._domain, Domain):
            raise ConfigError(f"domain: expected an L2Ball, a Box or None, got {type(self._domain).__name__}")
        if isinstance(self._loss, Squared) and self._loss.radius is not None:
            radius = self._domain.radius if isinstance(self._domain, L2Ball) else np.inf
            if radius > self._loss.radius:
                raise ConfigError(f"Squared: its bound assumes domain=L2Ball({self._loss.radius:g}) or smaller")
        if isinstance(self._domain, Box) and not (self._domain.low < 1e60 and self._domain.high > -1e60):
            raise ConfigError(f"domain: expected a box that reaches within 1e60 of zero, got {self._domain}")

    def _resolve_loss(self) -> Loss:
        loss = loss_for(self.loss)
        if not isinstance(loss, self._losses):
            names = ", ".join(kind.name for kind in self._losses)
            raise ConfigError(f"{type(self).__name__}: loss must be one of {names}, got {loss.name}")
        return loss

    def _outputs(self) -> int:
        return 1

    def _target_task(self) -> Task:
        """What is predicted, and how wrong that may be."""
        raise NotImplementedError

    def _decided(self, scores: np.ndarray) -> np.ndarray:
        """The predictions (n,) that follow from linear predictors."""
        raise NotImplementedError

    def _size(self, p: int) -> int:
        """The number of parameters for p features."""
        return self._loss.size(p + int(self.intercept), self._outputs())

    def _describe(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        """(spec, box) of the model for p features: see `loops`."""
        from streamdp.optim import loops as k

        spec = self._loss.spec()
        spec[k.INTERCEPT] = bool(self.intercept)
        box = np.repeat([[-np.inf], [np.inf]], self._size(p), axis=1)
        if isinstance(self._domain, L2Ball):
            spec[k.DOMAIN], spec[k.RADIUS] = k.BALL, self._domain.radius
        elif isinstance(self._domain, Box):
            box[0], box[1] = self._domain.low, self._domain.high
        if isinstance(self._loss, Huber):
            box[:, -1] = self._loss.sigma_min, np.inf
        return spec, box

    def _target_bounds(self) -> tuple[float, float] | None:
        """The declared bounds of the target, None if there are none."""
        return None

    # -- reading ------------------------------------------------------------------------------------------------

    def _estimate(self) -> np.ndarray:
        """The vector (d,) that predicts from the columns of `Features`."""
        raise NotImplementedError

    def _need_features(self, what: str) -> Features:
        if self._features is None:
            raise NotAvailableError(f"{what}: declare `features` first, or learn a record")
        return self._features

    @property
    def theta(self) -> np.ndarray:
        """A copy of the estimate (d,): coefficients by feature, the intercept, Huber's scale; K blocks for K classes.

        With a public schema as `features` it is in original units, except for models without an intercept, whose
        coefficients are of columns scaled to [-1, 1].

        Raises `NotAvailableError` before the features are known.
        """
        features = self._need_features("theta")
        theta = without_shift(self._estimate(), self._outputs())
        if self.intercept:
            features.to_original(self._blocks(theta))
        return theta

    def _blocks(self, theta: np.ndarray) -> np.ndarray:
        """The part of theta that predicts, by class: a view (K, q), or (1, q)."""
        q = len(self._names) + int(self.intercept)
        return theta[: q * self._outputs()].reshape(-1, q)

    @property
    def weights(self) -> dict[Any, Any]:
        """The estimate by name; the intercept under "(intercept)", Huber's scale under "(scale)".

        For more than two classes a dict by class of dicts by name. Empty before the features are known.
        """
        if self._features is None:
            return {}
        return self._named(self.theta, [*self._names, *(["(intercept)"] if self.intercept else [])])

    def _named(self, theta: np.ndarray, names: list[Any]) -> dict[Any, Any]:
        if isinstance(self._loss, Huber):
            names = [*names, "(scale)"]
        return dict(zip(names, theta.tolist(), strict=True))

    def _point(self) -> tuple[np.ndarray, bool]:
        """The vector (d,) that predicts, and whether it is of original values, and not of the columns of `Features`."""
        return self._estimate(), False

    def _learned_units(self) -> np.ndarray | None:
        """The `frame` of the columns, if probabilities know the noise of theta."""
        return None

    def _single(self) -> Predictor | None:
        """What predicts single records, of a model with one output; None if there is no fast way."""
        predictor = self._predictor
        if predictor is None and self._features is not None and self._features.packer is not None:
            predictor = Predictor(self._features.packer, *self._point(), self.intercept, self._learned_units())
            if self._stays:
                self._predictor = predictor
        return predictor

    def _score_one(self, x: Mapping[Any, Any]) -> float:
        """The linear predictor of one record, of a model with one output."""
        if (predictor := self._single()) is not None and (score := predictor.score(x)) is not None:
            return score
        return float(self._scores(self._need_features("predict").row_of(x))[0, 0])

    def _scores_one(self, x: Mapping[Any, Any]) -> list[float]:
        """The linear predictors of one record, one for each output."""
        features = self._need_features("predict")
        if features.packer is not None:
            scores = features.packer.predictors(x, *self._point(), self._outputs(), self.intercept)
            if scores is not None:
                return scores
        found: list[float] = self._scores(features.row_of(x))[0].tolist()
        return found

    def _scores(self, X: np.ndarray, point: np.ndarray | None = None) -> np.ndarray:
        """The linear predictors of X (n, p), of the estimate or of `point`: (n, K) for K > 2 classes, else (n, 1)."""
        blocks = self._blocks(self._estimate() if point is None else point)
        with np.errstate(over="ignore", invalid="ignore"):
            scores: np.ndarray = X @ blocks[:, : X.shape[1]].T
            if self.intercept:
                scores += blocks[:, -1]
        np.clip(np.nan_to_num(scores, copy=False), -_LARGEST_SCORE, _LARGEST_SCORE, out=scores)  # of any finite record
        return scores

    def predict_arrays(self, X: np.ndarray) -> np.ndarray:
        """Return the (n,) predictions; of classes their indices, the first one of two that are equal.

        Parameters
        ----------
        X
            (n, p) floats, columns in the order of the declared features.
        """
        return self._decided(self._scores(self._matrix(X)))

    # -- state --------------------------------------------------------------------------------------------------

    def _model(self) -> dict[str, Any]:
        """What two estimators must share for their states to mean the same."""
        assert self._features is not None
        return {
            "estimator": type(self).__name__,
            "features": list(self._names),
            "loss": repr(self._loss),
            "intercept": bool(self.intercept),
            "units": repr([self._features.origin.tolist(), self._features.unit.tolist()]),
        }

    def _learned(self) -> dict[str, Any]:
        """What was learned, as plain values and new arrays for the state."""
        raise NotImplementedError

    def _read(self, state: Mapping[str, Any]) -> None:
        """Take over what another estimator of this model learned, in a copy that an error discards.

        Raises `ConfigError` for values out of range; `KeyError`, `TypeError`, `ValueError`, `OverflowError`: no state.
        """
        raise NotImplementedError

    def _learned_beside(self) -> dict[str, Any]:
        """What is kept beside the model, for the state."""
        return {}

    def _discard(self) -> None:
        """Discard the open batch, window and users."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, text and arrays. No random words and no raw records are in it.

        Raises `NotAvailableError` before the features are known, and `NotAtBoundaryError` unless `at_boundary`.
        """
        self._need_features("state_dict")
        with self._rng.lock:
            if not self.at_boundary:
                raise NotAtBoundaryError(
                    f"{self._pending} records of an unfinished batch or open window are in memory: learn the "
                    f"{self.to_boundary} that are missing, or call close_batch()"
                )
            return {
                "format": FORMAT,
                **self._model(),
                **self._learned(),
                **self._learned_beside(),
                **{name: getattr(self, name) for name in self._counts},
                "spent": [str(budget) for budget in self._spent],
                "private": self.private,
                "caps": self.cap_history.state(),
            }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, for `streamdp.load`: JSON text with a checksum, for its owner only, and no pickle.

        Parameters
        ----------
        path
            The file. It appears whole or not at all, and an existing one is replaced.

        Raises the errors of `state_dict`; `ConfigError` for a model with a ledger, which a `Store` keeps, and for
        parameters that are no plain values; and `StoreError` if the file cannot be written.
        """
        from streamdp.estimators.saving import save

        with self._rng.lock:
            save(check_path("save", path), type(self).__name__, self._get_params(), self.state_dict())

    def _repr_html_(self) -> str:
        from streamdp.estimators.html import page

        return page(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state; an open batch, window or user is discarded.

        An estimator without features takes those of the state. A state that was learned without privacy stays so:
        `guarantee.private` is False from then on.

        Parameters
        ----------
        state
            What `state_dict` of an estimator with the same parameters returned.

        Raises `ConfigError`, changing nothing, for a state of another format or model, and for values out of range;
        `BudgetError` for spends that cannot be read.
        """
        with self._rng.lock:
            new = object.__new__(type(self))
            vars(new).update(self._attributes_of(new))
            try:
                new._load(state)
            except KeyError as missing:
                raise ConfigError(f"state: lacks {missing}") from None
            except StreamDPError:
                raise
            except (TypeError, ValueError, OverflowError, IndexError):
                raise ConfigError("state: expected what state_dict returns") from None
            if self._features is not None:
                self._discard()
            # At once: an exception, such as Ctrl-C, must not leave a half-loaded estimator.
            vars(self).update(new._attributes_of(self), _quick=None, _predictor=None)

    def _attributes_of(self, owner: Self) -> dict[str, Any]:
        """Copies of the attributes for another one, of the last boundary. Random words and public names are shared."""
        state = self.__getstate__()
        shared = [value for name, value in state.items() if name in ("_rng", "_features") or not name.startswith("_")]
        return copy.deepcopy(state, {id(self): owner} | {id(value): value for value in shared})

    def _load(self, state: Mapping[str, Any]) -> None:
        """Take over a state, in a copy that an error discards. Raises what `_read` raises."""
        if state["format"] != FORMAT:
            raise ConfigError(f"state: expected format {FORMAT}, got {state['format']}")
        if self._features is None:
            self._declare(list(state["features"]))
        for what, mine in self._model().items():
            if state[what] != mine:
                raise ConfigError(f"state: expected {what} {mine}, got {state[what]}")
        self._set_spent([parse_budget(text) for text in state["spent"]])
        counts = {name: int(state[name]) for name in self._counts}
        if not all(0 <= n <= MOST_RECORDS for n in counts.values()):
            raise ConfigError(f"state: expected counts from 0 to {MOST_RECORDS}, got {counts}")
        self._tainted |= not state["private"]
        self._history, self._charges = read_history(state["caps"]), False
        self._read(state)
        for name, n in counts.items():
            setattr(self, name, n)

    def _check_theta(self, theta: np.ndarray) -> None:
        """Raise `ConfigError` for a theta outside the domain."""
        self._loss.check_theta(theta, len(self._names) + int(self.intercept))
        free = theta[:-1] if isinstance(self._loss, Huber) else theta  # the scale is not a coefficient
        if not np.allclose(self._domain.project(free), free, rtol=1e-9, atol=0.0):
            raise ConfigError(f"state: theta is outside {self._domain}")

    def merged(self, *others: Self) -> Self:
        """Return a new estimator, the average of this one and others, for learners of disjoint records.

        The average is weighted by records (by users for windows). Open batches, windows and users are left out.

        The guarantee is the widest of theirs (parallel composition: each record entered one of them) if the records are
        disjoint; the spends of a person with records in several compose. What is lost against one pass over all
        records: each part keeps the bias of a shorter run, and there is no interval.

        Parameters
        ----------
        others
            Estimators of the same model, that is with the same parameters and features.

        Raises `ConfigError` if models differ or an estimator is given twice (a copy, which has the same records, is not
        recognised), and `NotAvailableError` before the features are known.
        """
        if not all(isinstance(other, LinearModel) for other in others):
            raise ConfigError("merged: expected estimators of the same model")
        if len({id(part) for part in (self, *others)}) <= len(others):
            raise ConfigError("merged: expected estimators of disjoint records, got one of them twice")
        result = self.clone()
        result._start_from_average((self, *others))  # noqa: SLF001 - the same class
        return result

    def _start_from_average(self, parts: Sequence[Self]) -> None:
        models, counts, numbers = zip(*(part._contribution() for part in parts), strict=True)  # noqa: SLF001 - the same class
        for what, agreed in models[0].items():
            if any(model.get(what) != agreed for model in models):
                raise ConfigError(f"merged: expected one {what}, got {agreed} and others")
        if self._features is None:
            self._declare(models[0]["features"])
        self._tainted = not all(part.private for part in parts)
        self._history = CapHistory({}).joined(*(part.cap_history for part in parts))
        self._set_spent(budget for part in parts for budget in part.guarantee.budgets)
        for name in self._counts:
            setattr(self, name, sum(count[name] for count in counts))
        weights = [count[self._weighed_by] for count in counts]
        if total := sum(weights):
            self._start_from(sum(part * (weight / total) for part, weight in zip(numbers, weights, strict=True)))

    def _contribution(self) -> tuple[dict[str, Any], dict[str, int], np.ndarray]:
        """The model, the counts and the numbers that `merged` takes, all of the last boundary."""
        self._need_features("merged")
        counts = {name: getattr(self, name) for name in self._counts}
        counts["n_seen"] -= self._pending
        return self._model() | {"domain": self._domain}, counts, self._numbers()

    def _numbers(self) -> np.ndarray:
        """What `merged` averages."""
        return self._estimate()

    def _start_from(self, numbers: np.ndarray) -> None:
        """Go on from these numbers, in an estimator that has learned nothing."""
        raise NotImplementedError

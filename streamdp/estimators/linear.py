"""What all linear estimators share: loss, domain, the numbers that describe both to the compiled loops, and reading.

A subclass brings `_estimate`, the vector (d,) that answers: coefficients by feature, the intercept, Huber's scale; K
blocks for K classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from streamdp.errors import ConfigError, NotAvailableError
from streamdp.estimators.base import ClassifierFace, RegressorFace, StreamEstimator
from streamdp.optim.domains import Box, Domain, L2Ball
from streamdp.optim.losses import Hinge, Huber, Logistic, Loss, Quantile, Softmax, Squared, loss_for


def gradients(spec: np.ndarray, loss: Loss, point: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The (n, d) gradients of n records at one point."""
    from streamdp.optim import loops

    out = np.empty((len(X), len(point)))
    (loops.gradients_of_classes if isinstance(loss, Softmax) else loops.gradients)(spec, point, X, y, out)
    return out


class LinearModel(StreamEstimator):
    """Loss, domain and weights of a linear predictor."""

    _losses: ClassVar[tuple[type[Loss], ...]]

    loss: str | Loss
    domain: Domain | None
    intercept: bool

    def _set_up_model(self, default_domain: Domain) -> None:
        self._loss = self._resolve_loss()
        self._domain = default_domain if self.domain is None else self.domain
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

    def _describe(self, p: int) -> tuple[np.ndarray, np.ndarray]:
        """(spec, box) of the model for p features: see `kernels`."""
        from streamdp.optim import loops as k

        d = self._loss.size(p + int(self.intercept), self._outputs())
        spec = self._loss.spec()
        spec[k.INTERCEPT] = bool(self.intercept)
        box = np.empty((2, d))
        box[0], box[1] = -np.inf, np.inf
        if isinstance(self._domain, L2Ball):
            spec[k.DOMAIN], spec[k.RADIUS] = k.BALL, self._domain.radius
        elif isinstance(self._domain, Box):
            box[0], box[1] = self._domain.low, self._domain.high
        if isinstance(self._loss, Huber):
            box[:, -1] = self._loss.sigma_min, np.inf
        return spec, box

    def _estimate(self) -> np.ndarray:
        raise NotImplementedError

    def _need_features(self, what: str) -> None:
        if not self._names:
            raise NotAvailableError(f"{what}: declare `features` first, or learn a record")

    @property
    def theta(self) -> np.ndarray:
        """A copy of the estimate (d,): coefficients by feature, the intercept, Huber's scale; K blocks for K classes.

        Raises `NotAvailableError` before features are known.
        """
        self._need_features("theta")
        return self._estimate().copy()

    @property
    def weights(self) -> dict[Any, Any]:
        """The estimate by name; the intercept under "(intercept)", Huber's scale under "(scale)".

        For more than two classes a dict by class of dicts by name.
        """
        if not self._names:
            return {}
        names = [*self._names, *(["(intercept)"] if self.intercept else [])]
        return self._named(self.theta, names)

    def _named(self, theta: np.ndarray, names: list[Any]) -> dict[Any, Any]:
        if isinstance(self._loss, Huber):
            names = [*names, "(scale)"]
        return dict(zip(names, theta.tolist(), strict=True))

    def _scores(self, X: np.ndarray) -> np.ndarray:
        q = X.shape[1] + int(self.intercept)
        blocks = self._estimate()[: q * self._outputs()].reshape(-1, q)
        scores = X @ blocks[:, : X.shape[1]].T
        return scores + blocks[:, -1] if self.intercept else scores

    def _model(self) -> dict[str, Any]:
        """What two estimators must share for their states to mean the same."""
        return {
            "estimator": type(self).__name__,
            "features": list(self._names),
            "loss": repr(self._loss),
            "intercept": bool(self.intercept),
        }

    def _taker(self, state: Mapping[str, Any], form: int) -> Self:
        """Who can take over this state: this estimator, or an empty one with the state's features where it has none.

        Raises `ConfigError` where the state is of another format or model, and `KeyError` where it lacks something.
        """
        if state["format"] != form:
            raise ConfigError(f"state: expected format {form}, got {state['format']}")
        taker = self if self._names else self.clone({"features": list(state["features"])})
        for what, mine in taker._model().items():
            if state[what] != mine:
                raise ConfigError(f"state: expected {what} {mine}, got {state[what]}")
        return taker

    def _union(self, parts: Sequence[Self], same: str) -> Self:
        """A new estimator with the refusals and spends of these, private where all of them are; theirs to fill in is
        what they learned. Raises `ConfigError`, which says what must be the `same`, where models differ.
        """
        for part in parts:
            part._need_features("merged")
            if (part._model(), part._domain) != (self._model(), self._domain):
                raise ConfigError(f"merged: expected one {same}")
        result = self.clone()
        if not result._names:
            result._declare(self._names)
        result.n_refused = sum(part.n_refused for part in parts)
        result._tainted = not all(part.private for part in parts)
        result._set_spent(budget for part in parts for budget in part._spent)
        return result

    def _check_theta(self, theta: np.ndarray) -> None:
        """Raise `ConfigError` for a theta outside the domain."""
        self._loss.check_theta(theta, len(self._names) + int(self.intercept))
        free = theta[:-1] if isinstance(self._loss, Huber) else theta  # the scale is not a coefficient
        if not np.allclose(self._domain.project(free), free, rtol=1e-9, atol=0.0):
            raise ConfigError(f"state: theta is outside {self._domain}")


class LinearRegressor(LinearModel, RegressorFace):
    """Numbers as targets."""

    _losses = (Huber, Squared, Quantile)


class LinearClassifier(LinearModel, ClassifierFace):
    """Classes as targets; call `_set_up_classes` before `_set_up_model`."""

    _losses = (Logistic, Softmax, Hinge)

    def _resolve_loss(self) -> Loss:
        loss = super()._resolve_loss()
        self.probabilistic = not isinstance(loss, Hinge)
        if self._multiclass and isinstance(loss, Logistic):
            return Softmax(clip=loss.clip)  # multinomial logistic is the logistic loss of many classes
        if self._multiclass and not isinstance(loss, Softmax):
            raise ConfigError(f"loss {loss.name} is for two classes; use softmax")
        return loss

    def _model(self) -> dict[str, Any]:
        return super()._model() | {"classes": [repr(label) for label in self._labels]}

    def _outputs(self) -> int:
        return len(self._labels) if isinstance(self._loss, Softmax) else 1

    def _named(self, theta: np.ndarray, names: list[Any]) -> dict[Any, Any]:
        if self._outputs() == 1:
            return super()._named(theta, names)
        blocks = theta.reshape(self._outputs(), -1)
        return {
            label: dict(zip(names, block.tolist(), strict=True))
            for label, block in zip(self._labels, blocks, strict=True)
        }

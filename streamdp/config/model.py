"""The model part of a job configuration: the estimator, its parameters, its loss, its domain and its validation."""

from collections.abc import Collection, Mapping
from inspect import signature
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from streamdp import estimators
from streamdp.config.settings import Settings
from streamdp.config.trust import ESTIMATORS, STATISTICS
from streamdp.errors import ConfigError
from streamdp.estimators.door import Trust, trust_of
from streamdp.estimators.estimator import Estimator
from streamdp.learners.user_reports import Centre
from streamdp.optim.domains import Domain
from streamdp.optim.losses import Loss
from streamdp.optim.steps import Clock
from streamdp.privacy.guarantees import parse_budget
from streamdp.privacy.mechanisms import MechanismName
from streamdp.reading.change import OnChange
from streamdp.scaling.units import Scaling
from streamdp.validation.plan import plan_of

BudgetText = Annotated[str, BeforeValidator(lambda value: str(parse_budget(value)))]
"""The canonical text of a budget, so that `eps=1.0` and `epsilon=1` have the same fingerprint."""


class DomainConfig(Settings):
    """The set of allowed parameters theta. Exactly one of the two fields is set.

    - `ball`: the radius of an L2 ball around 0.
    - `box`: the bounds (low, high) of every coordinate.
    """

    ball: float | None = None
    box: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.ball is None) == (self.box is None):
            raise ValueError("expected ball: R, or box: [low, high]")
        self.build()
        return self

    def build(self) -> Domain:
        """The domain. Raises `ConfigError` for a radius or bounds out of range."""
        from streamdp.optim.domains import Box, L2Ball

        return L2Ball(self.ball) if self.ball is not None else Box(*self.box)  # type: ignore[misc]


class ModelConfig(Settings):
    """The estimator and its parameters.

    - `trust`: who may see the raw records while they are processed: `nobody`, `process` (this process, and nothing
      stays), `window` (this process, for a window of people) or `shuffler`. It chooses the estimator. Default, without
      an estimator: `window` for files and tables, `process` for Kafka, `nobody` for requests and devices.
    - `estimator`: the name of a public estimator class, in place of `trust`. The parameters that are not listed here
      have the name and the meaning that they have in its constructor. Parameters that are not set take the defaults of
      the constructor.
    - `loss`: the name of a loss, or a mapping with `name` and the parameters of the loss.
    - `budget`: what a record may spend. Default: `eps=1`. If the estimator needs a delta, and none is given, it is
      1e-8, or below 1 / n if the job declares `expected_records`.
    - `share`: with `statistics` beside the model, its share of the budget relative to theirs; default 1.
    - `every`, `zone`: with `statistics`, the length of windows of time, such as `1 day`, and the time zone of their
      days, such as `Europe/Berlin`; default UTC.
    - `seed`: for tests only: a model with a seed is not private. A job with a seed is refused unless the environment
      has `STREAMDP_TEST_SEEDS=1`.
    - `cohort`: `{people: n, rounds: T}`, with a source of type: shuffle: the same n people answer in each of T rounds.
      Without `rounds`, T is planned.
    """

    trust: Trust | None = None
    estimator: Literal[ESTIMATORS] = ""  # type: ignore[valid-type]  # `config.trust` chooses it
    loss: str | dict[str, object] | None = None
    budget: BudgetText = "eps=1"
    mechanism: MechanismName | None = None
    eta: float | None = None
    alpha: float | None = None
    clock: Clock | None = None
    scaling: Scaling | None = None
    domain: DomainConfig | None = None
    intercept: bool | None = None
    share: float | None = Field(default=None, ge=1e-6, le=1e6)
    seed: int | None = None
    horizon: int | None = None
    batch_size: int | None = None
    every: str | None = None
    zone: str | None = None
    smoothness: float | None = None
    strong_convexity: float | None = None
    change: OnChange | None = None
    method: str | None = None
    items_per_user: int | None = None
    window: int | None = None
    window_seconds: float | None = None
    spread: float | None = None
    centre: Centre | None = None
    cohort: dict[str, int] | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not self.estimator:
            raise ValueError("expected trust or estimator")
        if self.estimator == STATISTICS:
            return self
        if self.trust is not None and self.trust != (found := trust_of(self.estimator)):
            raise ValueError(
                f"trust: {self.trust} and estimator: {self.estimator} disagree, because the latter means trust: {found}"
                "; leave one of them out"
            )
        return self

    @field_validator("loss")
    @classmethod
    def _known(cls, value: Any) -> object:
        if value is not None:
            build_loss(value)
        return value

    def parameters(self, known: Collection[str]) -> dict[str, Any]:
        """The parameters of the constructor that are given. Raises `ConfigError` for one that is not `known` to it."""
        others = ("trust", "estimator", "loss", "budget", "domain", "share")
        given = {key: value for key, value in self if value is not None and key not in others}
        if foreign := sorted(given.keys() - known):
            fitting = ", ".join(name for name in type(self).model_fields if name in known and name not in others)
            raise ConfigError(f"{self.estimator} has no {foreign[0]}, but {fitting}")
        return given

    @property
    def kind(self) -> type[Estimator]:
        """The class of the estimator."""
        return getattr(estimators, self.estimator)


class ValidationConfig(Settings):
    """How records answer about the model's error before they are learned. One of `share` and `budget` is set.

    - `share`: the share of the records that answer in place of a gradient, with their whole budget; at most 0.5.
    - `budget`: what each record spends on its answer beside `model.budget`, such as `eps=0.5`. A cap counts both.
    - `bound`: for numbers: the largest distance of target and prediction that counts, in the unit of the target column.
      Default: 2.5 times the scale of the target if that is learned privately; at most half the width of its bounds.
    """

    share: float | None = None
    budget: BudgetText | None = None
    bound: float | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        plan_of(self.model_dump())
        return self

    def given(self, scale: float, bounds: tuple[float, float] | None) -> dict[str, object]:
        """What estimators take as `validation`, for a target of this `scale`.

        `bounds` are those of a target that an estimator without bounds learns. None: it needs none.
        """
        bound = self.bound
        if bound is None and bounds is not None:
            bound = (bounds[1] - bounds[0]) / 2
        given = {"share": self.share, "budget": self.budget, "bound": None if bound is None else bound / scale}
        return {name: value for name, value in given.items() if value is not None}


def build_loss(choice: str | Mapping[str, object]) -> Loss:
    """Build a loss. `choice` is its name, or a mapping with `name` and the parameters of the loss.

    Raises `ConfigError` for an unknown name or parameter; the message lists the known ones.
    """
    from streamdp.optim.losses import LOSSES

    parameters = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = str(parameters.pop("name", None))
    if name not in LOSSES:
        raise ConfigError(f"expected one of {', '.join(LOSSES)}")
    known = signature(LOSSES[name]).parameters
    for key, value in parameters.items():
        if key not in known:
            raise ConfigError(f"{name} has the parameters {', '.join(known)}, and no {key!r}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not number and key != "weighting":
            raise ConfigError(f"{key} of {name} must be a number")
    return LOSSES[name](**parameters)

"""What a program adds to the library is known to compiled code and claims no more than that gives, or is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest

from streamdp import (
    ApproxDP,
    GaussianDP,
    Hinge,
    Huber,
    L2Ball,
    LDPSGDClassifier,
    LDPSGDRegressor,
    Logistic,
    PanPrivateRegressor,
    PureDP,
)
from streamdp.errors import BudgetError, ConfigError
from streamdp.estimators import declared
from streamdp.estimators.declared import OfNumber
from streamdp.learners.learner import Learner
from streamdp.learners.linear_problem import LinearProblem
from streamdp.learners.side_statistics import divided
from streamdp.learners.sums import HeldPure, PanPure
from streamdp.ledger.admission import all_fit
from streamdp.ledger.caps import cap_numbers, check_counts, shared_numbers, spend_numbers
from streamdp.ledger.periods import RenewingCap
from streamdp.ledger.rows import ROW
from streamdp.optim.curvature import has_curvature
from streamdp.optim.domains import RealSpace
from streamdp.optim.loops import BALL, DOMAIN, LOSS, gradient
from streamdp.optim.losses import LOSSES, Loss
from streamdp.optim.losses.base import CODES
from streamdp.optim.losses.claims import _largest
from streamdp.privacy.composition import spend_terms
from streamdp.privacy.entropy import Entropy
from streamdp.privacy.guarantees import with_amount
from streamdp.privacy.mechanisms import MECHANISMS, Gaussian, Laplace, PrivUnit
from streamdp.privacy.mechanisms.base import Mechanism
from streamdp.privacy.samplers import randomize
from streamdp.privacy.statement import in_words
from streamdp.stats import Statistics
from tests.support.states import method_of


@dataclass(frozen=True, kw_only=True)
class LogCosh(Loss):
    """The example of CONTRIBUTING, without its branch in the compiled loops."""

    name: ClassVar[str] = "logcosh"
    code: ClassVar[int] = 99

    def _bound(self) -> float:
        return 2**0.5


@dataclass(frozen=True, kw_only=True)
class Nameless(Loss):
    """A loss without a code."""

    name: ClassVar[str] = "nameless"


@dataclass(frozen=True)
class Staircase(Mechanism):
    """A mechanism that the samplers do not know, with a claim of its own."""

    name: ClassVar[str] = "staircase"
    code: ClassVar[int] = 9
    serves: ClassVar[tuple[type, ...]] = (GaussianDP,)


@pytest.mark.parametrize("kind", [LogCosh, Nameless])
def test_a_loss_that_the_loops_do_not_know_is_refused(kind: type[Loss]) -> None:
    with pytest.raises(ConfigError, match="no loss with this code"):
        LDPSGDRegressor(loss=kind())


def test_a_mechanism_that_the_samplers_do_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="no mechanism with this code"):
        LDPSGDRegressor(budget="mu=1", mechanism=Staircase(GaussianDP(1)))


def test_each_loss_and_mechanism_of_ours_has_a_code_of_its_own() -> None:
    assert {loss.code for loss in LOSSES.values()} == {*CODES}  # Squared and Poisson are Huber's with another kappa
    assert Huber().code == 1
    codes = [Laplace(PureDP(1)).code, Gaussian(GaussianDP(1)).code, PrivUnit(PureDP(1)).code]
    assert codes == [1, 2, 3]


# --- losses


@dataclass(frozen=True, kw_only=True)
class Modest(Hinge):
    """Hinge loss with a smaller bound than it has."""

    def _bound(self) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Near(Huber):
    """Huber's loss with a sensitivity of a bound: 1.9 times less than two records have."""

    def _sensitivity(self) -> float:
        return self._bound()


@dataclass(frozen=True, kw_only=True)
class Wide(Huber):
    """Huber's loss that is described to the compiled loops with another c than its bound is for."""

    def spec(self) -> np.ndarray:
        spec = super().spec()
        spec[2] *= 2
        return spec


@dataclass(frozen=True, kw_only=True)
class Unclipped(Huber):
    """Huber's loss with a gradient of its own."""

    def gradient(self, theta: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
        return 10 * super().gradient(theta, x, y)


@dataclass(frozen=True, kw_only=True)
class Heavy(Logistic):
    """Logistic loss with weights of its own."""

    def weight(self, x: np.ndarray) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Careless(Hinge):
    """Hinge loss that skips the checks of its base."""

    code: ClassVar[int] = 17

    def __post_init__(self) -> None:
        """Nothing is checked."""


@dataclass(frozen=True, kw_only=True)
class Honest(Huber):
    """Huber's loss with another start."""

    def start(self, d: int) -> np.ndarray:
        return np.append(np.zeros(d - 1), 2.0)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (Modest(), "its bound is 1, and there are records with 1.41421"),
        (Near(), "its sensitivity is 1.9"),
        (Wide(), "its bound is 1.9"),
        (Unclipped(), "would ignore its own gradient"),
        (Heavy(), "would ignore its own weight"),
    ],
)
@pytest.mark.parametrize("kind", ["LDPSGD", "PanPrivate", "Shuffle", "Windowed", "UserLevelLDP"])
def test_a_loss_that_claims_too_much_is_refused_by_every_estimator(kind: str, loss: Loss, message: str) -> None:
    import streamdp

    made = getattr(streamdp, kind + ("Classifier" if loss.of_classes else "Regressor"))
    with pytest.raises(ConfigError, match=message):
        made(loss=loss)


def test_a_loss_that_skips_the_checks_of_its_base_is_refused() -> None:
    with pytest.raises(ConfigError, match="no loss with this code"):
        LDPSGDClassifier(loss=Careless())


def test_an_honest_loss_learns_and_its_curvature_is_not_taken_for_granted() -> None:
    assert not has_curvature(Honest())
    LDPSGDRegressor(loss=Honest(), features=["a"]).learn_one({"a": 1.0}, 1.0)
    assert method_of(PanPrivateRegressor(loss=Honest())) == "ac-sa"


def test_the_search_finds_the_claims_of_our_losses() -> None:
    """So that one that is a tenth too small would be found."""
    for loss in (kind() for kind in LOSSES.values()):
        norm, distance = _largest(loss)
        assert 0.9 * loss.bound < norm <= loss.bound * (1 + 1e-9)
        assert 0.9 * loss.sensitivity < distance <= loss.sensitivity * (1 + 1e-9)


@dataclass(frozen=True)
class Loose(L2Ball):
    """A ball that projects nothing."""

    def project(self, theta: np.ndarray) -> np.ndarray:
        return theta


def test_a_domain_whose_projection_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an L2Ball, a Box or None, got Loose"):
        LDPSGDRegressor(domain=Loose(1.0))


# --- mechanisms


@dataclass(frozen=True)
class Claiming(Laplace):
    """Laplace noise for a claim about GDP."""

    serves: ClassVar[tuple[type, ...]] = (GaussianDP,)


@dataclass(frozen=True)
class Quiet(Gaussian):
    """Half the noise."""

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        rows = super().rows(d, amounts, answers)
        rows[:, 0] /= 2
        return rows


@dataclass(frozen=True)
class Own(Laplace):
    """Noise of its own, which the compiled loop does not call."""

    def randomize(self, g: np.ndarray, rng: Any = None) -> np.ndarray:
        return g + np.random.default_rng().laplace(size=g.shape)


@dataclass(frozen=True)
class Loud(Laplace):
    """Twice the noise."""

    def rows(self, d: int, amounts: np.ndarray | None = None, answers: bool = True) -> np.ndarray:
        rows = super().rows(d, amounts, answers)
        rows[:, 0] *= 2
        return rows


@pytest.mark.parametrize(
    ("kind", "budget", "error", "message"),
    [
        (Claiming, "mu=1", BudgetError, "Laplace serves a budget eps=E"),
        (Quiet, "mu=1", ConfigError, "less noise than Gaussian needs for mu=1"),
        (Quiet, "eps=1,delta=1e-6", ConfigError, "less noise than Gaussian needs"),
        (Own, "eps=1", ConfigError, "would ignore its own randomize"),
    ],
)
def test_a_mechanism_that_claims_too_much_is_refused(
    kind: type[Mechanism], budget: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LDPSGDRegressor(mechanism=kind, budget=budget)


def test_a_louder_mechanism_learns() -> None:
    LDPSGDRegressor(mechanism=Loud, budget="eps=1", features=["a"]).learn_one({"a": 1.0}, 1.0)
    assert set(MECHANISMS) == {"laplace", "gaussian", "privunit", "none"}


# --- compiled code


def test_compiled_code_refuses_codes_that_it_does_not_know() -> None:
    X, y, g = np.ones((1, 1)), np.ones(1), np.ones(3)
    spec = Huber().spec()
    for place, code in ((LOSS, 99.0), (LOSS, -1.0), (LOSS, 0.5), (LOSS, np.nan), (DOMAIN, BALL + 2.0)):
        wrong = spec.copy()
        wrong[place] = code
        with pytest.raises(TypeError, match="with this code"):
            gradient(wrong, np.array([0.0, 1.0]), X, y, 0, g)
    row, words = Laplace(PureDP(1)).rows(1), Entropy().words
    for mechanism in (4, -1, 99):
        with pytest.raises(TypeError, match="no mechanism with this code"):
            randomize(mechanism, row, np.ones((1, 1)), words)
    assert all_fit(np.zeros((1, ROW)), 1, 1.0, 1e-6)
    assert not all_fit(np.zeros((1, ROW)), 7, 1.0, 1e-6)


# --- learners


class Forgetful(Learner):
    """A learner that says nothing about its noise, and nothing about budgets of records."""

    trust = "nobody"

    def begin(self, columns: Any) -> None:
        self.columns = columns

    def learn(self, X: np.ndarray, y: np.ndarray, budget: Any, amounts: Any) -> None:
        self.seen[0] += len(X)

    @property
    def point(self) -> tuple[np.ndarray, bool]:
        return np.zeros(1), False

    def learned(self) -> dict[str, Any]:
        return {}

    def read(self, state: Mapping[str, Any]) -> None:
        """Nothing."""

    def merge(self, parts: Any, average: Any) -> None:
        """Nothing."""


class Boasting(Forgetful):
    """It says that it serves budgets of records, and checks none."""

    per_record_budgets = True


class Forgetting(LDPSGDRegressor):
    """An estimator of such a learner."""

    learns: type[Learner] = Forgetful

    def _make_learner(self, problem: LinearProblem, budget: Any, rng: Any) -> Learner:
        return self.learns(problem, budget, rng)


def test_a_learner_that_forgets_what_it_must_say_claims_nothing() -> None:
    learner = Forgetful(LinearProblem(Huber(), RealSpace()), PureDP(1), Entropy())
    assert not learner.private
    assert not learner.per_record_budgets
    assert not learner.any_budget
    model = Forgetting(features=["a"])
    model.learn_one({"a": 1.0}, 1.0, budget="eps=0.5")
    assert (model.n_seen, model.n_refused) == (0, 1)  # all its records spend the same, and this one allows less
    model.learn_one({"a": 1.0}, 1.0)
    assert "NOT PRIVATE" in model.statement()
    with pytest.raises(BudgetError, match="all records spend eps=1, and none"):
        Boasting(LinearProblem(Huber(), RealSpace()), PureDP(1), Entropy()).check(PureDP(0.5))


# --- statistics


class Maximum(OfNumber):
    """A kind of statistic that says what a record adds, and not how its numbers are read."""

    kind = "max"


def test_a_kind_of_statistic_claims_what_it_says_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more name in the table gave counts of cells for a maximum: 988,964 for 100."""
    with pytest.raises(TypeError):
        declared.KINDS["max"] = Maximum  # type: ignore[index]
    monkeypatch.setattr(declared, "KINDS", {**declared.KINDS, "max": Maximum})
    for trust in ("nobody", "process", "window", "shuffler"):
        size: Any = {} if trust == "nobody" else {"batch_size": 1}
        largest = Statistics({"m": {"max": "x"}}, {"x": (0, 100)}, trust=trust, **size)  # type: ignore[arg-type]
        largest.learn_one({"x": 100})
        with pytest.raises(NotImplementedError):
            largest.get()


def test_a_trust_that_is_not_known_divides_no_budget() -> None:
    with pytest.raises(BudgetError, match=r"expected trust process or shuffler, .*got 'window'"):
        divided(ApproxDP(1, 1e-6), 0.5, "window")


@dataclass(frozen=True)
class Fourth:
    """A kind of budget that the library does not know."""

    epsilon: float = 1.0


@pytest.mark.parametrize(
    "asked",
    [cap_numbers, partial(spend_numbers, amounts=None, n=1), partial(shared_numbers, numbers=np.array([1, 2])),
        partial(with_amount, value=1.0), in_words, spend_terms, lambda budget: check_counts(budget, PureDP(1)),
        lambda budget: RenewingCap(budget, 60).in_span(), lambda budget: HeldPure(budget, []),
        lambda budget: PanPure(budget, [])],
)  # fmt: skip
def test_a_budget_of_a_kind_that_is_not_known_is_refused(asked: Any) -> None:
    """Six of these returned None, or ended in an assertion, which no caller expects and which -O removes."""
    with pytest.raises(BudgetError, match=r"expected PureDP|cannot count|expected a budget"):
        asked(Fourth())


@pytest.mark.parametrize("budget", [ApproxDP(1, 1e-6), GaussianDP(1)])
def test_a_second_record_of_a_person_in_one_release_has_no_charge_but_for_a_pure_epsilon(budget: Any) -> None:
    with pytest.raises(BudgetError, match="and not several"):
        shared_numbers(budget, np.array([1, 2]))

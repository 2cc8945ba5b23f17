"""Pan-private and shuffled learning with method="newton": when it is chosen, boundaries, states, and three parties.

What holds for all methods, and not for Newton's alone, is tested here for the others, too (`PLANNED`).
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamdp import (
    Box,
    Gaussian,
    Hinge,
    Huber,
    L2Ball,
    Logistic,
    PanPrivateClassifier,
    PanPrivateRegressor,
    Quantile,
    ShuffleClassifier,
    ShuffleRegressor,
    Softmax,
    Squared,
)
from streamdp.aggregation.shuffled_sum import Analyzer, Shuffler
from streamdp.errors import ConfigError, NotAtBoundaryError, NotAvailableError, SchemaError
from streamdp.estimators.shuffle.randomizer import ShuffleRandomizer
from streamdp.optim.curvature import Curvature
from streamdp.protocol.agreement import Agreement
from streamdp.protocol.devices import ShuffleDevice
from streamdp.protocol.shuffle_wire import write_announcement
from tests.support.newton import averages
from tests.support.states import loss_of, method_of, noise_of, open_sum, params_of, steps_of

NAMES = ["a", "b", "c"]
MODELS: dict[str, Callable[..., Any]] = {
    "pan huber": lambda **o: PanPrivateRegressor(**({"features": NAMES, "budget": "mu=2"} | o)),
    "pan logistic": lambda **o: PanPrivateClassifier(**({"features": NAMES} | o)),
    "pan ball": lambda **o: PanPrivateClassifier(**({"features": NAMES, "domain": L2Ball(0.5)} | o)),
    "shuffle huber": lambda **o: ShuffleRegressor(**({"features": NAMES, "budget": "eps=4,delta=1e-4"} | o)),
    "shuffle logistic": lambda **o: ShuffleClassifier(**({"features": NAMES, "budget": "eps=4,delta=1e-4"} | o)),
}
KINDS = [PanPrivateRegressor, PanPrivateClassifier, ShuffleRegressor, ShuffleClassifier]
every = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
AC_SA: dict[str, Any] = {"features": NAMES, "method": "ac-sa"}
PLANNED: dict[str, Callable[..., Any]] = {
    "pan ac-sa": lambda **o: PanPrivateRegressor(**(AC_SA | o)),
    "pan box": lambda **o: PanPrivateRegressor(**(AC_SA | {"domain": Box(-1.0, 2.0), "horizon": 700} | o)),
    "pan clipped": lambda **o: PanPrivateRegressor(**(AC_SA | {"loss": Squared(clip=1.0), "smoothness": 2.0} | o)),
    "pan quantile": lambda **o: PanPrivateRegressor(**(AC_SA | {"loss": "quantile", "budget": "mu=0.5"} | o)),
    "pan epochs": lambda **o: PanPrivateClassifier(**(AC_SA | {"strong_convexity": 0.2} | o)),
    "pan hinge": lambda **o: PanPrivateClassifier(**(AC_SA | {"loss": "hinge", "intercept": False} | o)),
    "pan classes": lambda **o: PanPrivateClassifier(**(AC_SA | {"classes": (False, True, "more")} | o)),
    "shuffle ac-sa": lambda **o: ShuffleClassifier(**(AC_SA | {"horizon": 700} | o)),
    "shuffle sgd": lambda **o: ShuffleRegressor(**(AC_SA | {"method": "sgd", "horizon": 700} | o)),
}


def stream(model: Any, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    u = X @ [1.0, -2.0, 0.5]
    if isinstance(model, PanPrivateRegressor | ShuffleRegressor):
        return X, u + rng.normal(0, 0.3, n)
    return X, (u + rng.normal(0, 0.5, n) > 0).astype(float)


def held(model: Any) -> np.ndarray:
    sums: np.ndarray = open_sum(model)
    return sums


# --- which method


@pytest.mark.parametrize(
    ("kind", "loss", "classes"),
    [
        (PanPrivateRegressor, "quantile", None),
        (PanPrivateRegressor, Squared(clip=1.0), None),
        (PanPrivateClassifier, "hinge", None),
        (PanPrivateClassifier, Softmax(clip=1.0), ("u", "v", "w")),
        (ShuffleClassifier, Hinge(), None),
        (ShuffleRegressor, Quantile(tau=0.2), None),
    ],
    ids=str,
)
def test_a_loss_without_curvature_falls_back_to_ac_sa_and_refuses_newton(kind: Any, loss: Any, classes: Any) -> None:
    options = {"loss": loss} | ({"classes": classes} if classes else {})
    assert method_of(kind(**options)) == "ac-sa"
    assert method_of(kind(horizon=100, **options)) == "ac-sa"
    with pytest.raises(ConfigError, match=r"needs a bounded curvature.*squared, Poisson, logistic and softmax losses"):
        kind(method="newton", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_newton_is_the_default_for_the_losses_that_have_a_curvature(kind: Any) -> None:
    assert method_of(kind()) == method_of(kind(method="newton")) == "newton"
    if "Classifier" in kind.__name__:
        assert method_of(kind(classes=("u", "v", "w"))) == "newton"
    assert method_of(kind(method="ac-sa")) == "ac-sa"
    assert method_of(kind(method="ac-sa", horizon=100)) == "ac-sa"
    loss = (Logistic if "Classifier" in kind.__name__ else Huber)(clip=1.0)
    assert method_of(kind(loss=loss, smoothness=1.0)) == "ac-sa"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["auto", "newton"])
@pytest.mark.parametrize("given", [{"horizon": 100}, {"smoothness": 1.0}, {"strong_convexity": 0.01}], ids=str)
def test_a_parameter_that_newton_would_ignore_is_an_error(kind: Any, method: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"only planned steps use it.*ac-sa"):
        kind(method=method, **given)
    kind(method="ac-sa", **given)


def test_sgd_is_a_method_of_shuffling_only() -> None:
    assert method_of(ShuffleClassifier(method="sgd")) == "sgd"
    with pytest.raises(ConfigError, match="expected one of auto, newton, ac-sa, got 'sgd'"):
        PanPrivateClassifier(method="sgd")


# --- the noise and the batches


def test_the_noise_is_for_the_joint_sensitivity() -> None:
    for make in (MODELS["pan huber"], MODELS["pan logistic"]):
        model = make()
        curvature = Curvature(loss_of(model), 4, plain=True)
        scale = math.sqrt(Gaussian(model.record_budget, curvature.bound, curvature.sensitivity).variance(1))
        assert noise_of(model).scale / noise_of(model).cells == pytest.approx(scale, rel=1e-4)
        assert steps_of(model).deviation == pytest.approx(math.sqrt(2) * scale, rel=1e-4)
        assert len(held(model)) == curvature.size
    for make in (MODELS["shuffle huber"], MODELS["shuffle logistic"]):
        model = make()
        curvature = Curvature(loss_of(model), 4, plain=True)
        params = params_of(model)
        assert (params.d, params.bound) == (curvature.size, curvature.bound)
        assert params.sensitivity == pytest.approx(curvature.sensitivity)
        deviation = math.sqrt(params.noise_variance / params.d)
        assert steps_of(model).deviation == pytest.approx(deviation, rel=0.1)


def test_a_batch_that_is_closed_early_counts_as_the_records_that_it_has() -> None:
    for make in MODELS.values():
        model = make(seed=1)
        X, y = stream(model, 25)
        model.learn_encoded(X[:20], y[:20])
        with pytest.raises(NotAtBoundaryError):
            model.state_dict()
        model.close_batch()
        assert (model.at_boundary, model.n_seen, steps_of(model).place) == (True, 20, (0, 0, 20))
        walk = steps_of(model)
        d = walk.curvature.parameters
        assert averages(walk).information == pytest.approx(1 / (walk.curvature.variance / 20 + walk.noise / 400))
        assert walk.noise == pytest.approx(walk.deviation**2 * d)
        model.close_batch()
        assert steps_of(model).place == (0, 0, 20)


def test_there_is_no_plan() -> None:
    with pytest.raises(NotAvailableError, match="no plan"):
        MODELS["pan huber"]().phase  # noqa: B018


# --- states


@every
def test_states_of_other_methods_and_outside_of_the_domain_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="state: expected"):
        make(method="ac-sa").load_state_dict(make().state_dict())
    inside = make(domain=L2Ball(1.0), batch_size=50)
    outside = inside.state_dict()
    outside["state"][0] = 3.0
    with pytest.raises(ConfigError, match="outside"):
        inside.load_state_dict(outside)


@every
def test_merged_learners_know_what_one_would(make: Callable[..., Any]) -> None:
    parts = [make(seed=s, batch_size=500) for s in range(3)]
    for seed, (part, n) in enumerate(zip(parts, (2000, 4010, 10), strict=True)):
        part.learn_encoded(*stream(part, n, seed))
    together = parts[0].merged(*parts[1:])
    assert (together.n_seen, together.at_boundary, steps_of(together).place) == (6000, True, (0, 0, 6000))
    steps = [steps_of(part) for part in (together, *parts)]
    whole, *found = map(averages, steps)
    assert steps[0].state.records == sum(step.state.records for step in steps[1:])
    carried = loss_of(parts[0]).least_scale is not None  # to one sigma, which changes their weights
    if not carried:
        np.testing.assert_allclose(whole[3:], np.sum([part[3:] for part in found], axis=0))
    for name in () if carried else ("point", "gradient", "curvature"):
        weights = [part.weight if name == "curvature" else part.information for part in found]
        expected = np.average([getattr(part, name) for part in found], axis=0, weights=weights)
        np.testing.assert_allclose(getattr(whole, name), expected, err_msg=name)
    together.learn_encoded(*stream(together, 500))
    make(batch_size=500).load_state_dict(together.state_dict())
    with pytest.raises(ConfigError, match="merged"):
        parts[0].merged(make(batch_size=501))


# --- domain and statement


def test_without_a_domain_nothing_is_said_of_one() -> None:
    for kind in KINDS:
        model = kind(features=NAMES)
        assert "theta is kept in" not in model.statement()
        assert "theta is kept in L2Ball(radius=5.0)" in kind(features=NAMES, method="ac-sa").statement()


def test_a_domain_is_kept_and_said() -> None:
    for domain in (L2Ball(0.3), Box(-0.1, 0.2)):
        model = PanPrivateClassifier(features=NAMES, domain=domain, budget="mu=2")
        X, y = stream(model, 5000)
        for low in range(0, 5000, 250):
            model.learn_encoded(X[low : low + 250], y[low : low + 250])
            assert model.theta == pytest.approx(domain.project(model.theta), abs=1e-12)
        assert f"theta is kept in {domain}; the coefficients lie on the border of their domain" in model.statement()


def test_the_scale_of_targets_does_not_matter_to_newton() -> None:
    """Far outside the default ball of AC-SA."""
    for factor in (1e-2, 1.0, 1e2):
        model = PanPrivateRegressor(Huber(sigma_min=1e-4), features=NAMES, seed=2)
        X, y = stream(model, 60_000)
        model.learn_encoded(X, factor * y)
        np.testing.assert_allclose(model.theta[:3], factor * np.array([1.0, -2.0, 0.5]), atol=0.4 * factor)


# --- three parties


def test_three_parties_do_what_one_process_does() -> None:
    """Through packed, permuted bits; batch after batch, of growing sizes."""
    learner = MODELS["shuffle logistic"](budget="eps=1,delta=1e-4")
    X, y = stream(learner, 20_000)
    at, errors, sizes = 0, [], []
    for _ in range(8):
        randomizer = learner.randomizer
        size = randomizer.params.users
        rows = slice(at, at + size)
        shuffler = Shuffler(randomizer.params)
        shuffler.collect(randomizer.messages(dict(zip(NAMES, X[at], strict=True)), y[at]))
        shuffler.collect(randomizer.messages_of(X[rows][1:], y[rows][1:]))
        shuffled = shuffler.forward()
        exact = (
            Curvature(Logistic(), 4, plain=True)
            .vectors(randomizer.spec, randomizer.point, X[rows], y[rows])
            .sum(axis=0)
        )
        deviation = math.sqrt(randomizer.params.variance / randomizer.params.d)
        errors.append((Analyzer(randomizer.params).sum(shuffled) - exact) / deviation)
        assert learner.batch == (0, 0, at)
        learner.absorb(shuffled)
        at += size
        sizes.append(size)
    assert len(set(sizes)) > 1
    assert np.max(np.abs(errors)) < 5.5
    assert 0.6 < np.std(errors) < 1.2
    assert learner.n_seen == at
    assert str(learner.guarantee) == "eps=1,delta=0.0001"


def test_fewer_answers_move_the_estimate_less_and_batches_stay_those_agreed_on() -> None:
    learner = ShuffleClassifier(features=NAMES, budget="eps=4,delta=1e-4")
    randomizer = learner.randomizer
    X, y = stream(learner, randomizer.params.users * 2 // 3)
    shuffler = Shuffler(randomizer.params, minimum=len(X))
    shuffler.collect(randomizer.messages_of(X, y))
    learner.absorb(shuffler.forward())
    assert learner.n_seen == len(X)
    assert learner.batch == (0, 0, randomizer.params.users)
    assert learner.guarantee.budgets == (randomizer.params.guarantee_for(len(X)),)
    agreement = Agreement(ShuffleClassifier(features=NAMES, budget="eps=4,delta=1e-4"))
    assert agreement.after((0, 0, 0)) == learner.batch


def test_devices_answer_announcements_of_growing_batches() -> None:
    """Each party derives the batches from the job alone; an announcement of another sum is refused."""
    options = {"features": NAMES, "budget": "eps=1,delta=1e-4"}
    learner = ShuffleClassifier(**options)
    agreement = Agreement(ShuffleClassifier(**options))
    place = agreement.first
    sizes = []
    for _ in range(12):
        steps_of(learner).go(place)
        learner.learner._begin_phase()
        assert agreement.params(place) == learner.randomizer.params
        announced = write_announcement(Agreement(learner).announcement(place, learner.randomizer.point))
        key, value = ShuffleDevice(agreement).answer(announced, {"a": 0.5, "b": -1.0, "c": 0.0}, 1.0)
        assert key.endswith(f"/0/0/{place[2]}".encode())
        assert len(value) == 16 + agreement.params(place).message_bytes
        sizes.append(agreement.params(place).users)
        place = agreement.after(place)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    assert place[2] == sum(sizes)
    for nowhere in ((1, 0, 0), (0, 1, 0), (0, 0, 10**19)):
        with pytest.raises(SchemaError, match="no such batch"):
            agreement.params(nowhere)
    other = ShuffleClassifier(**options, method="ac-sa")
    with pytest.raises(ConfigError, match="refused"):
        agreement.accept(write_announcement(Agreement(other).announcement(other.batch, other.randomizer.point)))


def test_a_device_refuses_another_curvature() -> None:
    good = MODELS["shuffle logistic"]().randomizer
    fields = {name: getattr(good, name) for name in good.__dataclass_fields__}
    ShuffleRandomizer(**fields)
    for change in (
        {"curvature": None},
        {"curvature": Curvature(Logistic(), 3, plain=True)},
        {"curvature": Curvature(Logistic(), 4)},
        {"curvature": Curvature(Huber(), 4)},
        {"curvature": Curvature(Softmax(), 4, 2)},
        {"params": MODELS["shuffle logistic"](method="ac-sa").randomizer.params},
    ):
        with pytest.raises(ConfigError):
            ShuffleRandomizer(**(fields | change))

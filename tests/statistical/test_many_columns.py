"""Models of many columns are not worse than a constant: a fast version of `benchmarks.learning`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.learning import earlier, simulated
from benchmarks.shared.pages import mean_and_error
from benchmarks.shared.simulation import Simulation
from tests.support.sizes import some


@pytest.mark.slow
@pytest.mark.parametrize("loss", some(["huber", "logistic"], 1))
def test_a_hundred_columns_are_not_worse_than_a_constant(loss: str) -> None:
    """6 draws of 10,000 records at eps = 4. The steps before were worse on the same draws.

    Records and noise are of fixed seeds, so no run differs from another: luck raises no false alarm.
    """
    simulation = Simulation(loss, 100)

    def excess(made: Callable[[Any], Any]) -> tuple[float, float]:
        found = []
        for seed in range(6):
            model = made(simulated(loss, 100, "eps=4", seed))
            model.learn_encoded(*simulation.draw(10_000, 100 + seed))
            found.append(simulation.excess(model.theta))
        return mean_and_error(np.array(found))

    mean, error = excess(lambda model: model)
    assert mean <= simulation.constant + error
    assert excess(earlier)[0] > mean + 2 * error

"""A plan of more records than any stream has is refused: its number would be no number of a document."""

import pytest

from streamdp import Huber, Logistic, Squared
from streamdp.errors import ConfigError
from streamdp.optim.losses import Loss
from streamdp.optim.planner import plan_records


@pytest.mark.parametrize("error", [1e-9, 1e-300, 5e-324])
def test_an_error_that_no_number_of_records_reaches_is_refused(error: float) -> None:
    with pytest.raises(ConfigError, match="error: more than"):
        plan_records("huber", 5, "eps=1", error)


def test_plans_of_other_errors_are_as_they_were() -> None:
    assert plan_records("huber", 1, "eps=1", 1e6) == 1


@pytest.mark.parametrize("loss", ["hinge", "softmax", "poisson"])
def test_losses_without_a_closed_minimiser_are_refused(loss: str) -> None:
    """Poisson's loss was planned as the squared one, of which it is a kind."""
    with pytest.raises(ConfigError, match="plan: expected huber, squared, logistic or quantile"):
        plan_records(loss, 5, "eps=1", 0.3)


@pytest.mark.parametrize("loss", [Huber(), Squared(), Logistic()], ids=str)
def test_a_loss_has_the_plan_of_its_name(loss: Loss) -> None:
    """Before, `loss: squared` of a job had another weight in its plan than in its model, and 350 times the error."""
    assert plan_records(loss, 5, "eps=1", 0.3) == plan_records(loss.name, 5, "eps=1", 0.3)

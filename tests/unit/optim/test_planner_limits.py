"""A plan of more records than any stream has is refused: its number would be no number of a document."""

import pytest

from streamdp.errors import ConfigError
from streamdp.optim.planner import plan_records


@pytest.mark.parametrize("error", [1e-9, 1e-300, 5e-324])
def test_an_error_that_no_number_of_records_reaches_is_refused(error: float) -> None:
    with pytest.raises(ConfigError, match="error: more than"):
        plan_records("huber", 5, "eps=1", error)


def test_plans_of_other_errors_are_as_they_were() -> None:
    assert plan_records("huber", 1, "eps=1", 1e6) == 1

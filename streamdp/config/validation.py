"""The part of a job configuration about private validation."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from streamdp.config.model import BudgetText
from streamdp.config.settings import Settings
from streamdp.validation.plan import plan_of


class ValidationConfig(Settings):
    """How records answer about the model's error before they are learned. One of `share` and `budget` is set.

    Parameters
    ----------
    share
        The share of the records that answer in place of a gradient, with their whole budget; at most 0.5.
    budget
        What each record spends on its answer beside `model.budget`, such as `eps=0.5`. A cap counts both.
    bound
        For numbers: the largest distance of target and prediction that counts, in the unit of the target column.
        Default: 2.5 times the scale of the target if that is learned privately; at most half the width of its bounds.
    """

    share: float | None = None
    budget: BudgetText | None = None
    bound: float | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        plan_of(self.model_dump())
        return self

    def given(self, scale: float, bounds: tuple[float, float] | None) -> dict[str, Any]:
        """What estimators take as `validation`, for a target of this `scale`.

        `bounds` are those of a target that an estimator without bounds learns. None: it needs none.
        """
        bound = self.bound
        if bound is None and bounds is not None:
            bound = (bounds[1] - bounds[0]) / 2
        given = {"share": self.share, "budget": self.budget, "bound": None if bound is None else bound / scale}
        return {name: value for name, value in given.items() if value is not None}

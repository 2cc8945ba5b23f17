"""What a program adds to the library is known to the compiled code, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from streamdp import GaussianDP, Huber, LDPSGDRegressor, PureDP
from streamdp.errors import ConfigError
from streamdp.optim.losses import LOSSES, Loss
from streamdp.privacy.mechanisms import Gaussian, Laplace, PrivUnit
from streamdp.privacy.mechanisms.base import Mechanism


@dataclass(frozen=True, kw_only=True)
class LogCosh(Loss):
    """The example of CONTRIBUTING, without its branch in the compiled loops."""

    name: ClassVar[str] = "logcosh"
    code: ClassVar[int] = 6

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
    assert sorted(loss.code for loss in LOSSES.values()) == list(range(6))
    assert Huber().code == 1
    codes = [Laplace(PureDP(1)).code, Gaussian(GaussianDP(1)).code, PrivUnit(PureDP(1)).code]
    assert codes == [1, 2, 3]

"""Step sizes of stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

from streamdp.errors import ConfigError


@dataclass(frozen=True)
class PowerStep:
    """eta_i = eta i^-alpha for i = 1, 2, ...

    Source: Shi et al. 2025, eq. 3.2. alpha = 1/2 gives the averaged iterate its best rate and the fastest start. At
    alpha = 1 neither iterate is sure to converge (their Remark 2), so it is refused.

    Parameters
    ----------
    eta
        Positive and finite.
    alpha
        0 <= alpha < 1.

    Raises `ConfigError` if a number is out of range.

    >>> PowerStep(0.2, 0.5)(4)
    0.1
    """

    eta: float = 0.2
    alpha: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.eta < float("inf"):
            raise ConfigError(f"eta must be positive and finite, got {self.eta}")
        if not 0 <= self.alpha < 1:
            raise ConfigError(f"alpha must be in [0, 1), got {self.alpha}")

    def __call__(self, i: int) -> float:
        """The size of step i, at least 1."""
        size: float = self.eta * i**-self.alpha
        return size

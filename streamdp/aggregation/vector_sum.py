"""The parameters on which the parties of a shuffled sum agree: grid, noise and guarantee (see `shuffled_sum`)."""

from dataclasses import dataclass

import numpy as np

from streamdp.aggregation import binomial
from streamdp.data.floats import floats
from streamdp.errors import BudgetError, ConfigError, SchemaError, check_whole, is_number
from streamdp.privacy.guarantees import FORMS, ApproxDP, Budget, check_serviceable

MOST_ROUNDS = 10**6


@dataclass(frozen=True)
class VectorSum:
    """The parameters on which all parties agree before a sum; public. Make one by `calibrated`.

    Parameters
    ----------
    budget
        What one vector may spend, an `ApproxDP`: the guarantee if all users are honest.
    bound
        Delta2, the largest l2 norm of a vector, from 1e-60 to 1e60.
    users
        n, the number of users that are expected to answer, from 1 to 10^9.
    d
        The number of coordinates, from 1 to 10^6.
    g, b
        The cells of the grid on [-bound, bound], and the fair bits that a user adds to each coordinate.
    sensitivity
        The largest l2 distance of two vectors, at most 2 `bound`; None for 2 `bound`.
    rounds
        The number of such sums in which the same users take part, one after another; the budget covers all of them.

    A `VectorSum` that does not keep its budget cannot be made, so a user that receives one may rely on it. Raises
    `BudgetError` if g and b give too little noise or if no sum serves the budget, and `ConfigError` for other values
    out of range. The proof of the guarantee is docs/proofs/shuffled_sum.md.
    """

    budget: ApproxDP
    bound: float
    users: int
    d: int
    g: int
    b: int
    sensitivity: float | None = None
    rounds: int = 1

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, 1, MOST_ROUNDS)
        share = _check(self.budget, self.bound, self.users, self.d, self.sensitivity)
        check_whole("g", self.g, 1, 2**40)
        check_whole("b", self.b, 1, 2**40)
        for name in ("users", "d", "g", "b"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "sensitivity", share * 2 * self.bound)
        if self.users * self.b > binomial.MOST_TRIALS:
            raise BudgetError("a shuffled sum has up to 2^36 bits of noise for each coordinate in all")
        N, T = self.users * self.b, binomial.shift_of(self.g, self.d, share)
        spent = binomial.spent_delta(N, T, self.d, self.budget.epsilon, self.budget.delta, self.rounds)
        if spent > self.budget.delta:
            raise BudgetError(f"g={self.g} and b={self.b} do not keep {self.budget} for {self.users} users")

    @classmethod
    def calibrated(
        cls, budget: Budget, bound: float, users: int, d: int, sensitivity: float | None = None, rounds: int = 1
    ) -> "VectorSum":
        """Parameters that keep the `budget`, of an epsilon up to 100, with the errors of the class.

        They take about the fewest bits for a variance within 5 % of that of the analytic Gaussian mechanism. `bound`,
        `users`, `d`, `sensitivity` and `rounds` are those of the class.
        """
        check_whole("rounds", rounds, 1, MOST_ROUNDS)
        share = _check(budget, bound, users, d, sensitivity)
        assert isinstance(budget, ApproxDP)
        g, b = binomial.tight_parameters(int(users), int(d), budget, share, int(rounds))
        return cls(budget, float(bound), int(users), int(d), g, b, sensitivity, int(rounds))

    @property
    def message_bytes(self) -> int:
        """The bytes of one user's packed message, d rows of `row_bytes`."""
        return self.d * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """The bytes of one coordinate of a message: (g + b)/8, rounded up."""
        return (self.g + self.b + 7) // 8

    @property
    def cell(self) -> float:
        """The value of a single one: 2 bound / g."""
        return 2 * self.bound / self.g

    @property
    def noise_variance(self) -> float:
        """The binomial part of E||estimate - sum||^2 if all users answer: d cell^2 n b / 4."""
        return self.d * self.cell**2 * self.users * self.b / 4

    @property
    def variance(self) -> float:
        """The largest E||estimate - sum||^2 if all users answer, noise and rounding: d cell^2 n (b + 1) / 4."""
        return self.d * self.cell**2 * self.users * (self.b + 1) / 4

    def places(self, vectors: np.ndarray) -> np.ndarray:
        """`vectors` (d,) or (m, d) of l2 norm at most `bound` as places on the grid, from 0 to g: a new array (m, d).

        Raises `SchemaError` for another shape or kind, `ConfigError` for a longer vector or one that is not finite.
        """
        V = np.array(floats(f"vectors of {self.d} numbers", vectors), ndmin=2)
        if V.ndim != 2 or V.shape[1] != self.d:
            raise SchemaError(f"expected vectors of {self.d} numbers, got an array of shape {V.shape}")
        with np.errstate(over="ignore"):
            V /= self.bound
            short = np.linalg.norm(V, axis=1) <= 1 + 1e-9
        if not np.all(short):
            raise ConfigError(f"vectors to sum must be finite and of l2 norm at most {self.bound:g}")
        return np.clip((V + 1) * (self.g / 2), 0, self.g)

    def guarantee_for(self, honest: int) -> ApproxDP:
        """The guarantee of an honest user if only some users followed the protocol.

        The other users may not have answered, or may send anything; delta stays. Epsilon is solved for with the noise
        of the `honest` users, this one included, from 1 to n.

        Raises `BudgetError` if there is no guarantee, `ConfigError` for a number out of range.
        """
        check_whole("honest", honest, 1, self.users)
        shift = binomial.shift_of(self.g, self.d, (self.sensitivity or 0.0) / (2 * self.bound))
        epsilon = binomial.least_epsilon(int(honest) * self.b, shift, self.d, self.budget.delta, self.rounds)
        return ApproxDP(epsilon, self.budget.delta)


def _check(budget: Budget, bound: float, users: int, d: int, sensitivity: float | None) -> float:
    """The sensitivity over 2 bound. Raises for what cannot be served."""
    if not isinstance(budget, ApproxDP):
        raise BudgetError(f"a shuffled sum: expected {FORMS[ApproxDP]}, got {budget}")
    check_serviceable(budget)
    binomial.check_epsilon(budget)
    if not (is_number(bound) and 1e-60 <= bound <= 1e60):
        raise ConfigError(f"bound must be from 1e-60 to 1e60, got {bound!r}")
    if sensitivity is not None and not (is_number(sensitivity) and 0 < sensitivity <= 2 * bound * (1 + 1e-12)):
        raise ConfigError(f"sensitivity must be in (0, 2 bound], got {sensitivity!r}")
    check_whole("users", users, 1, 10**9)
    check_whole("d", d, 1, 10**6)
    return 1.0 if sensitivity is None else min(1.0, sensitivity / (2 * bound))

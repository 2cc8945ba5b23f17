"""The row of a subject: what its numbers mean, for compiled code and for storage.

A row is `ROW` float64 numbers: the four sums of a `Spend`, the number of records, and the subject's own cap as two
numbers. The last two are zero if the subject has the ledger's cap.
"""

from typing import NamedTuple

EPSILON, DELTA, MU_SQUARED, PURE_MU_SQUARED, RECORDS, CAP, CAP_DELTA = range(7)
ROW = 7

NOBODY = -1
"""The row number of a record without a subject. `admission.admit_in_order` admits it."""

PURE, APPROX, GAUSSIAN = range(3)
"""The kinds of cap."""


class CapNumbers(NamedTuple):
    """A cap as (PURE, E, 0), (APPROX, E, D) or (GAUSSIAN, M squared, -1): the sign of the last number is the kind."""

    kind: int
    most: float
    most_delta: float

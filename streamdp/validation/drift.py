"""When the error of a model has risen: a test on randomised answers with a proved rate of false alarms.

Each time a stretch of answers is complete (`sums.Rows`), the newest k stretches are compared with all older ones, for
k = 1, 2, 4, ..., 32. There is an alarm if for one k the mean error of the newest exceeds that of the older ones by more
than tolerance + sqrt(2 ln(6/(r L)) (W_n/n_n^2 + W_o/n_o^2)), with L the answers in a stretch, r = 10^-7, n the
numbers of answers about the error, and W the sums of the squares of half the range that an answer can have.

Claim: if the expected error does not rise by more than the tolerance, fewer than one false alarm in 10^7 records is
expected. No distribution and no independence of records is assumed. Proof: docs/proofs/validation.md.
"""

import math
from itertools import accumulate

from streamdp.validation.sums import ERROR, ERROR_RANGE, ERRORS, Rows

ROWS, FIRST, LONGEST = 64, 16, 512
"""How many stretches are remembered, and their lengths in answers: at first and at most."""
_RATE = 1e-7
_NEWEST = (1, 2, 4, 8, 16, 32)
_TOLERANCE = 0.01


def risen(rows: Rows, largest: float) -> bool:
    """Return whether the error of the newest stretches is above that of the older ones. Call it once for each stretch.

    `largest` is the largest error that an answer is about.
    """
    factor = 2 * math.log(len(_NEWEST) / (_RATE * rows.length))
    columns = rows.numbers[: rows.used, [ERRORS, ERROR, ERROR_RANGE]].T.tolist()
    before = [list(accumulate(column)) for column in columns]
    for newest in _NEWEST:
        if newest >= rows.used:
            return False
        (n, error, spread), (m, later, wide) = (
            [sums[-newest - 1] for sums in before],
            [[*accumulate(column[-newest:])][-1] for column in columns],
        )
        if min(n, m) > 0:
            room = _TOLERANCE * largest + math.sqrt(factor * (spread / n**2 + wide / m**2))
            if later / m - error / n > room:
                return True
    return False

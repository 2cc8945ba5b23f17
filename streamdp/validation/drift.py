"""When the error of a model has risen: a test on randomised answers with a proved rate of false alarms.

Each time a stretch of answers is complete (`sums.Rows`), the newest k stretches are compared with all older ones, for
k = 1, 2, 4, ..., 32. There is an alarm if for one k the mean error of the newest exceeds that of the older ones by more
than tolerance + sqrt(2 ln(6/(r L)) (W_n/n_n^2 + W_o/n_o^2)), with L the answers in a stretch, r = 10^-7, n the
numbers of answers about the error, and W the sums of the squares of half the range that an answer can have.

Assumption (no drift): given the past, the expected error of the model that is asked about is never more than the
tolerance, 1 % of the largest error, above what it was before in the same comparison; it may fall.

Claim. Without drift, fewer than one false alarm in 10^7 records is expected. So the probability that a given record
sets one off is below 10^-7 on average, and that of any within 10^6 records is below 10 %.

Proof. Which stretch an answer belongs to depends on public numbers only, so a comparison has fixed weights 1/n_n
and -1/n_o. An answer minus its expectation given the past is a martingale difference, and the answer lies in a fixed
interval of length 2 a, whatever the record. By Hoeffding's lemma and the tower rule (Azuma), the weighted sum
of the differences exceeds x with a probability of at most exp(-x^2/(2 sum of w^2 a^2)), which is r L/6 for the x above.
The weighted sum of the expectations is at most the tolerance. At most six comparisons follow a stretch of L answers,
and an answer comes from one record, so r L bounds the expected false alarms of L records or more. After an alarm, or
when the model begins to be asked, the sums begin anew at a moment that depends on the past only; the argument holds
again from there, given that past. No distribution and no independence of records is assumed.

Source: Hoeffding 1963; Azuma 1967; Page 1954 for tests of every window.
"""

from __future__ import annotations

import math

import numpy as np

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
    for newest in _NEWEST:
        if newest >= rows.used:
            return False
        sums = np.stack(rows.split(newest))
        n = sums[:, ERRORS]
        if n.min() > 0:
            old, new = sums[:, ERROR] / n
            if new - old > _TOLERANCE * largest + math.sqrt(factor * float(np.sum(sums[:, ERROR_RANGE] / n**2))):
                return True
    return False

"""Types of `pair_bits`, which is compiled."""

FIRST: int
SECOND: int
SUM: int
INFORMATION: int
ANSWERS: int
PAIR: int

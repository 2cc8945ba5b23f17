"""Types of `tails`, which is compiled."""

LEVELS: int
MASSES: int
LIKELIHOODS: int
TAILS: int

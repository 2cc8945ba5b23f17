"""Types of `tails`, which is compiled."""

MASSES: int
LIKELIHOODS: int
TAILS: int

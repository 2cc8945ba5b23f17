"""Types of `tails`, which is compiled."""

LEVELS: int
MASSES: int
TOLD: int
TAILS: int

"""Types of `location_scale`, which is compiled."""

CENTRES: int
SPREADS: int
CELLS: int
MEAN: int
VARIANCE: int
LOG: int
LOW: int
HIGH: int
REACH: int
REACH_VARIANCE: int
SUMMARY: int

"""Types of `unit_table`, which is compiled."""

from streamdp.scaling.arrays import UnitArrays

TOTAL: int
SEGMENT: int
WIDTH: int
REACHED: int
ASKED: int
TARGET: int
COUNT: int
NEXT: int
CLASS: int
CHANGES: int
BITS: int
PROGRESS: int
CENTRE: int
SCALE: int
SINCE: int
RESTARTED: int
ORIGIN: int
UNIT: int
SLOT: int
LEARNED: int
TABLE: int
ERROR: int
COLUMN: int
SUMMARY: int
GRADIENT: int
SHORTEST: int
DONE: float
FIRST: float
GROWTH: float

def rescale(arrays: UnitArrays) -> bool: ...
def refresh(arrays: UnitArrays) -> None: ...
def take_bit(arrays: UnitArrays, column: int, low: float, high: float, answer: bool, keep: float) -> bool: ...

"""The numbers of `rows` for compiled code (`tests/unit/ledger/test_loops.py` compares them)."""

cdef enum:
    EPSILON = 0
    DELTA = 1
    MU_SQUARED = 2
    PURE_MU_SQUARED = 3
    RECORDS = 4
    CAP = 5
    CAP_DELTA = 6
    ROW = 7
    NOBODY = -1

cdef enum:
    PURE = 0
    APPROX = 1
    GAUSSIAN = 2

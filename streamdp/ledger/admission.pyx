"""The compiled loop that admits spends against caps. `ledger.Ledger` states the rules; this is their arithmetic."""

from libc.math cimport INFINITY, M_PI, erfc, exp, log, sqrt
from libc.stdint cimport int64_t, uint8_t

cimport numpy as cnp

from streamdp.ledger.rows cimport (
    APPROX,
    CAP,
    CAP_DELTA,
    DELTA,
    EPSILON,
    GAUSSIAN,
    MU_SQUARED,
    PURE,
    PURE_MU_SQUARED,
    RECORDS,
    ROW,
)
from streamdp.privacy.arrays cimport flags, matrix, whole_matrix

cnp.import_array()


cdef extern from *:
    """
    /* Relative slack of every cap: thirty spends of 0.1 sum to 3.0000000000000013 and must fit a cap of 3. */
    #define SDP_TOLERANCE 1e-9
    """
    const double SDP_TOLERANCE


cdef enum:
    FILTERS = 2


cdef double _log_ndtr(double x) noexcept nogil:
    """Logarithm of the normal distribution function, with a relative error of 1e-10 for x <= 0."""
    cdef double z, series
    if x > -25.0:
        return log(0.5 * erfc(-x / sqrt(2.0)))
    # Further out, erfc underflows. Its asymptotic series, of which the next term is below 1e-11.
    z = 1 / (x * x)
    series = 1 - z * (1 - z * (3 - z * (15 - z * (105 - z * 945))))
    return -0.5 * x * x - log(-x) - 0.5 * log(2 * M_PI) + log(series)


cpdef double gdp_delta(double mu_squared, double epsilon) noexcept nogil:
    """Return the delta of sqrt(mu_squared)-GDP at epsilon >= 0: `guarantees.gdp_delta` for compiled code.

    An infinite mu_squared gives 1. Source: Corollary 1, Dong, Roth, Su 2022.
    """
    cdef double mu, first
    if mu_squared == INFINITY:
        return 1.0
    mu = sqrt(mu_squared)
    first = 0.5 * erfc((epsilon / mu - mu / 2) / sqrt(2.0))
    return max(0.0, first - exp(min(0.0, epsilon + _log_ndtr(-epsilon / mu - mu / 2))))


cdef bint _fits(const double* sums, Cap cap) noexcept nogil:
    """Whether these four sums stay within the cap; `caps` has the proofs."""
    cdef double slack = 1 + SDP_TOLERANCE
    if cap.kind == PURE:
        return sums[EPSILON] <= cap.most * slack and sums[DELTA] == 0 and sums[MU_SQUARED] == 0
    if cap.kind == GAUSSIAN:
        return sums[MU_SQUARED] + sums[PURE_MU_SQUARED] <= cap.most * slack * slack and sums[DELTA] == 0
    if cap.kind != APPROX:
        return False
    if sums[MU_SQUARED] == 0:
        return sums[EPSILON] <= cap.most * slack and sums[DELTA] <= cap.most_delta * slack
    if sums[EPSILON] != 0 or sums[DELTA] != 0:
        return False
    return gdp_delta(sums[MU_SQUARED], cap.most * slack) <= cap.most_delta * slack


cdef inline Cap _cap_of(const double* row, Cap cap) noexcept nogil:
    """The cap of a subject: its own, or the ledger's."""
    return Cap(cap.kind, row[CAP], row[CAP_DELTA]) if row[CAP] > 0 else cap


def all_fit(cnp.ndarray rows not None, int kind, double most, double most_delta):
    """Whether no subject in rows (m, ROW) is over its cap; `kind`, `most`, `most_delta`: the ledger's `CapNumbers`."""
    cdef const double* row = matrix(rows)
    cdef Py_ssize_t m = cnp.PyArray_DIM(rows, 0), i
    cdef Cap cap = Cap(kind, most, most_delta)
    cdef bint fit = True
    with nogil:
        for i in range(m):
            fit = fit and _fits(row + ROW * i, _cap_of(row + ROW * i, cap))
    return fit


cdef void admit_rows(
    const int64_t* slots,
    Py_ssize_t n,
    const double* term,
    Py_ssize_t step,
    double* rows,
    uint8_t* pending,
    const Cap* caps,
    int filters,
    uint8_t* admitted,
) noexcept nogil:
    """As `admit_in_order`; `step` is the distance of the terms of one record from those of the next."""
    cdef Py_ssize_t i
    cdef int f, j
    cdef double* row
    cdef double after[FILTERS][4]
    for i in range(n):
        admitted[i] = True
        for f in range(filters):
            if slots[f * n + i] < 0:
                continue
            row = rows + ROW * slots[f * n + i]
            for j in range(4):
                after[f][j] = row[j] + term[step * i + j]
            if not _fits(after[f], _cap_of(row, caps[f])):
                admitted[i] = False
                break
        if not admitted[i]:
            continue
        for f in range(filters):
            if slots[f * n + i] < 0:
                continue
            row = rows + ROW * slots[f * n + i]
            for j in range(4):
                row[j] = after[f][j]
            row[RECORDS] += 1
            pending[slots[f * n + i]] = True


def admit_in_order(
    cnp.ndarray slots not None,
    cnp.ndarray terms not None,
    cnp.ndarray rows not None,
    cnp.ndarray pending not None,
    list caps not None,
):
    """Admit records in order; a refused record adds to no row, so that a later, smaller one may still fit.

    Returns (n,) bool. `slots` (f, n) int64 is the row of each record's subject in each of f filters, -1 for a record
    that a filter always admits. `terms` (n, 4), or (1, 4) if all records spend the same, is what each adds to the four
    sums. `rows` (m, ROW) are changed in place, and `pending` (m,) bool is set for those. `caps` are the `CapNumbers` of
    the filters: of one, or of that of the period and that of the total (see `periods`).
    """
    cdef cnp.npy_intp n = cnp.PyArray_DIM(slots, 1), step = 0 if cnp.PyArray_DIM(terms, 0) == 1 else 4
    cdef const int64_t* slot = whole_matrix(slots)
    cdef const double* term = matrix(terms)
    cdef double* row = matrix(rows)
    cdef uint8_t* changed = flags(pending)
    cdef cnp.ndarray admitted = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_BOOL)
    cdef uint8_t* answer = flags(admitted)
    cdef Cap limits[FILTERS]
    cdef int filters = len(caps), f
    if filters != cnp.PyArray_DIM(slots, 0) or filters > FILTERS or (step and cnp.PyArray_DIM(terms, 0) != n):
        raise TypeError("expected rows for each of one or two filters, and terms for each record")
    for f in range(filters):
        limits[f].kind, limits[f].most, limits[f].most_delta = caps[f]
    with nogil:
        admit_rows(slot, n, term, step, row, changed, limits, filters, answer)
    return admitted

"""Compiled samplers: words of randomness in, noise out.

A sampler draws no randomness by itself. Words come from `entropy` as an array whose first entry is the position of the
first unused word. A sampler that runs out of words reports it, and is called again with more words. A used word is
overwritten with zero at once, because it would allow its noise to be subtracted. A calibration is one row of
`CALIBRATION` numbers for each record, or one row for all records (see `mechanisms`).
"""

from libc.math cimport rint
from libc.stdint cimport int64_t

cimport numpy as cnp

from streamdp.privacy.arrays cimport matrix, random_words, scratch, vector, whole_numbers, wipe
from streamdp.privacy.privunit cimport privunit
from streamdp.privacy.ziggurat cimport (
    Draw,
    Ziggurat,
    common,
    common_run,
    is_common,
    laplace_rare,
    laplace_table,
    normal_rare,
    normal_table,
    unit,
)

cnp.import_array()


cdef extern from *:
    """
    /* The nearest whole number, the even one of two, for |x| <= 2^51; a call of rint takes longer than all the rest.
       The sum is between 2^52 and 2^53, where doubles are the whole numbers, and the difference is exact. A gradient and
       its noise are far below 2^51 cells: 2^42 for the largest budget that is served. */
    static inline double sdp_whole(double x) { return (x + 6755399441055744.0) - 6755399441055744.0; }

    /* Adds the variates of d common words to g, on the grid. widths[j] is that of the layer of words[j]. No sum is
       reordered, and no product is fused with a sum. */
    SDP_CLONES static void sdp_add_common(
        double *g, const uint64_t *words, const double *widths, Py_ssize_t d, double cells, double scale, double grid
    ) {
        for (Py_ssize_t j = 0; j < d; j++) {
            double z = sdp_common(words[j], widths[j]);
            g[j] = (sdp_whole(g[j] * cells) + sdp_whole(z * scale)) * grid;
        }
    }

    /* See `calibrate`. The grid is the double of a scale without the bits after the leading one, times 2^-20. */
    SDP_CLONES static void sdp_calibrate(
        const double *amounts, Py_ssize_t n, double root, double sensitivity, double reach, double corner, double noise,
        double *out
    ) {
        for (Py_ssize_t i = 0; i < n; i++) {
            double scale = root * sensitivity / amounts[i], grid;
            uint64_t bits;
            memcpy(&bits, &scale, sizeof bits);
            bits &= (uint64_t) 0x7FF << 52;
            memcpy(&grid, &bits, sizeof grid);
            grid *= 0x1p-20;
            scale = root * (reach + corner * grid) / amounts[i];
            out[4 * i] = scale;
            out[4 * i + 1] = grid;
            out[4 * i + 2] = 0.5;
            out[4 * i + 3] = 1.0 / (1.0 + noise * (scale * scale));
        }
    }
    """
    double _whole "sdp_whole"(double x) noexcept nogil
    void sdp_add_common(
        double* g, const uint64_t* words, const double* widths, Py_ssize_t d, double cells, double scale, double grid
    ) noexcept nogil
    void sdp_calibrate(
        const double* amounts, Py_ssize_t n, double root, double sensitivity, double reach, double corner, double noise,
        double* out
    ) noexcept nogil


def calibrate(
    cnp.ndarray amounts not None,
    double root,
    double sensitivity,
    double reach,
    double corner,
    double noise,
    cnp.ndarray out not None,
):
    """Write rows of additive noise, for which records answer with noise alone (KEEP is 1/2), into `out` (n, `ADDITIVE`).

    The amounts (n,) are the epsilon or mu of each record, S is the sensitivity. The grid h of a record is the largest
    power of two at most 2^-20 of the scale without rounding, root S / amount. Its scale is root (reach + corner h) /
    amount, and its information 1 / (1 + noise scale^2).
    """
    cdef double* given = vector(amounts)
    cdef double* rows = matrix(out)
    if out.shape[0] != len(amounts) or out.shape[1] != ADDITIVE:
        raise TypeError("the amounts and the rows differ in size")
    sdp_calibrate(given, len(amounts), root, sensitivity, reach, corner, noise, rows)


cdef Py_ssize_t noise(
    int mechanism, const double* row, double* g, Py_ssize_t d, double* side, uint64_t* words, Py_ssize_t at, Py_ssize_t end
) noexcept nogil:
    """Randomise g (d,) in place by one calibration; `side` (d,) is scratch space.

    Returns the next position in `words`, or a position past its end if the words ran out; then g is not valid. A
    mechanism that is unknown makes zeros: callers check it by `columns`.
    """
    cdef double grid = row[GRID], cells = 1.0 / row[GRID], scale = row[SCALE] * cells  # a power of two: exact
    cdef const Ziggurat* table
    cdef Draw draw
    cdef Py_ssize_t run, j = 0
    if mechanism == PRIVUNIT:
        return privunit(row, g, d, side, words, at, end)
    if mechanism == NO_NOISE:
        return at
    if mechanism != GAUSSIAN and mechanism != LAPLACE:
        for j in range(d):
            g[j] = 0.0
        return at
    table = normal_table() if mechanism == GAUSSIAN else laplace_table()
    while True:
        run = common_run(table, words + at, side, min(d - j, end - at))
        sdp_add_common(g + j, words + at, side, run, cells, scale, grid)
        at += run
        j += run
        if j == d:
            return at
        if at >= end:
            return end + 1
        draw = normal_rare(table, words, at, end) if mechanism == GAUSSIAN else laplace_rare(table, words, at, end)
        if draw.at > end:
            return draw.at
        g[j] = (_whole(g[j] * cells) + _whole(draw.value * scale)) * grid
        at = draw.at
        j += 1


cdef bint use_words(uint64_t* words, Py_ssize_t end, Py_ssize_t start, Py_ssize_t at) noexcept nogil:
    """Overwrite the words from `start` to `at` and move the position past them.

    Returns False if one of them was zero. It may have been used before, so its noise may be known: the caller must not
    use the noise. Then the position moves to the end of the words.
    """
    cdef uint64_t zeros = 0, word
    cdef Py_ssize_t k
    for k in range(start, at):
        word = words[k]
        zeros |= (word - 1) & ~word  # its highest bit is set by the word 0 alone
        words[k] = 0
    words[0] = end if zeros >> 63 else at
    return not zeros >> 63


cdef int answer(bint truth, double keep, uint64_t* words, Py_ssize_t end) noexcept nogil:
    """As `respond`."""
    cdef Py_ssize_t at = words[0]
    cdef bint truthful
    if at >= end:
        return -1
    truthful = unit(words[at]) < keep
    return truth == truthful if use_words(words, end, at, at + 1) else -1


def respond(truth, double keep, cnp.ndarray words not None):
    """A noisy bit, 0 or 1: the truth with probability `keep`, from 1/2 to 1 (see `mechanisms.response`).

    -1 if the random words ran out; their first entry is the position.
    """
    return answer(bool(truth), keep, random_words(words), len(words))


def normals(cnp.ndarray words not None, double scale, cnp.ndarray out not None):
    """Fill `out` (d,) int64 with rounded normal variates of a standard deviation `scale`; False if the words ran out.

    The random words have no position, and are not overwritten.
    """
    cdef uint64_t* source = random_words(words)
    cdef int64_t* target = whole_numbers(out)
    cdef Py_ssize_t at = 0, end = len(words), d = len(out), j
    cdef const Ziggurat* table = normal_table()
    cdef Draw draw
    with nogil:
        for j in range(d):
            if at >= end:
                break
            if is_common(table, source[at]):
                target[j] = <int64_t> rint(common(table, source[at]) * scale)
                at += 1
            else:
                draw = normal_rare(table, source, at, end)
                at = draw.at
                if at > end:
                    break
                target[j] = <int64_t> rint(draw.value * scale)
        else:
            j = d
    return j == d


def randomize(int mechanism, cnp.ndarray calibration not None, cnp.ndarray G not None, cnp.ndarray words not None):
    """Randomise the rows of G (n, d) in place by the mechanism with this code.

    `calibration` is (n, c), one row for each row of G, or (1, c). The first entry of the random words is the position.
    Returns the number of rows done before the words ran out. Raises `TypeError` for arrays of another type or shape.
    """
    cdef double* rows = matrix(calibration)
    cdef double* out = matrix(G)
    cdef uint64_t* source = random_words(words)
    cdef Py_ssize_t width = calibration.shape[1], each = width if calibration.shape[0] > 1 else 0
    cdef Py_ssize_t n = G.shape[0], d = G.shape[1], end = len(words), at = source[0], start, i, j
    if width < columns(mechanism) or calibration.shape[0] < (n if each else 1):
        raise TypeError("the calibrations and the gradients differ in size")
    cdef double* room = scratch(2 * d)
    i = 0
    with nogil:
        for i in range(n):
            start = at
            for j in range(d):
                room[j] = out[i * d + j]
            at = noise(mechanism, rows + i * each, room, d, room + d, source, at, end)
            if at > end or not use_words(source, end, start, at):
                break
            for j in range(d):
                out[i * d + j] = room[j]
        else:
            i = n
    wipe(room, 2 * d)
    return i

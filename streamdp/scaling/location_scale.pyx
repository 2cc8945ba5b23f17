"""The centre m and the spread s of a column from noisy bits: a posterior on a grid, compiled.

A posterior is kept as logarithms of likelihoods, without the prior, so the evidence of disjoint records adds up. The
model of a value, the priors, and which question is asked next: docs/proofs/local_reports.md. It is for accuracy only.
Weights are floats of 32 bits: they round the logarithm of a probability by about 1e-7, and a noisy bit changes it by
about 2 keep - 1.
"""

from libc.math cimport INFINITY, exp, exp2, log, sqrt

cimport streamdp.privacy.ziggurat  # SDP_CLONES


cdef float _steps[(2 * CENTRES - 1) * SPREADS]  # exp(1.7 h/s) of all distances h of two centres
cdef double _rates[SPREADS]  # 1.7/s
cdef double _logs[SPREADS]  # ln s
cdef float _squares[SPREADS]  # s^2
cdef float _uniform[CELLS]  # logarithms of the prior of a target, and of that of a column
cdef float _expected[CELLS]

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define SDP_LEAST -40.0f  /* the logarithm of the least weight beside the largest one: all together have 1e-14 of it */
    #define SDP_CENTRES 193
    #define SDP_SPREADS 13
    #define SDP_CELLS (SDP_CENTRES * SDP_SPREADS)
    #define SDP_BLOCK (8 * SDP_SPREADS)  /* whole vectors */
    /* ln x of a normal float, to some units in the last place. The library's log is not vectorised. With x = 2^e m and m
       from sqrt(1/2) to sqrt(2), ln m = 2 (s + s^3/3 + ... + s^9/9), s = (m - 1)/(m + 1). */
    static inline float sdp_log(float x) {
        int32_t bits, e;
        float m, s, z;
        memcpy(&bits, &x, sizeof x);
        e = (bits - 0x3F3504F3) >> 23;
        bits -= e * (1 << 23);
        memcpy(&m, &bits, sizeof x);
        s = (m - 1.0f) / (m + 1.0f);
        z = s * s;
        return e * 0.693147181f + 2.0f * (s + s * (z * (1 / 3.0f + z * (1 / 5.0f + z * (1 / 7.0f + z / 9.0f)))));
    }

    /* exp(x) for -80 < x <= 0, to some units in the last place. The library's exp is not vectorised. With n the whole
       number next to x/ln 2 and r = x - n ln 2, exp x = 2^n (1 + r + r^2/2 + ... + r^7/7!). ln 2 is the sum of two
       numbers, of which the first has few bits, so that n times it is exact. */
    static inline float sdp_exp(float x) {
        int32_t n = (int32_t) (x * 1.44269504f - 0.5f), bits = (n + 127) * (1 << 23);
        float r = (x - n * 0.693359375f) + n * 2.12194440e-4f, power, series;
        memcpy(&power, &bits, sizeof x);
        series = 1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f + r / 5040.0f));
        return power * (1.0f + r * (1.0f + r * (0.5f + r * (1 / 6.0f + r * series))));
    }

    /* The largest logarithm, by blocks: then several are compared at once. */
    static inline float sdp_top(const float *cells) {
        float tops[SDP_BLOCK], top;
        memcpy(tops, cells, sizeof tops);
        for (int i = SDP_BLOCK; i + SDP_BLOCK <= SDP_CELLS; i += SDP_BLOCK)
            for (int k = 0; k < SDP_BLOCK; k++) tops[k] = cells[i + k] > tops[k] ? cells[i + k] : tops[k];
        top = tops[0];
        for (int k = 1; k < SDP_BLOCK; k++) top = tops[k] > top ? tops[k] : top;
        for (int i = SDP_CELLS - SDP_CELLS % SDP_BLOCK; i < SDP_CELLS; i++) top = cells[i] > top ? cells[i] : top;
        return top;
    }

    /* See `weigh`. */
    SDP_CLONES static void sdp_weigh(const float *cells, const float *prior, float *w) {
        float top, total = 0.0f;
        for (int i = 0; i < SDP_CELLS; i++) w[i] = cells[i] + prior[i];
        top = sdp_top(w);
        for (int i = 0; i < SDP_CELLS; i++) w[i] = w[i] - top > SDP_LEAST ? w[i] - top : SDP_LEAST;
        for (int i = 0; i < SDP_CELLS; i++) total += w[i] = sdp_exp(w[i]);
        total = 1.0f / total;
        for (int i = 0; i < SDP_CELLS; i++) w[i] *= total;
    }

    /* E ln r and Var ln r, r^2 = s^2 + (m - mean)^2. */
    SDP_CLONES static void sdp_reach(const float *w, const float *squares, float mean, double *out) {
        float r[SDP_CELLS], log = 0.0f, variance = 0.0f;
        for (int i = 0; i < SDP_CENTRES; i++) {
            float m = -1.0f + 2.0f * i / (SDP_CENTRES - 1), away = (m - mean) * (m - mean);
            for (int k = 0; k < SDP_SPREADS; k++) r[i * SDP_SPREADS + k] = squares[k] + away;
        }
        for (int i = 0; i < SDP_CELLS; i++) r[i] = 0.5f * sdp_log(r[i]);
        for (int i = 0; i < SDP_CELLS; i++) log += w[i] * r[i];
        for (int i = 0; i < SDP_CELLS; i++) variance += w[i] * (r[i] - log) * (r[i] - log);
        out[0] = log;
        out[1] = variance;
    }

    /* Adds ln(start + slope (1/(1 + above high) - 1/(1 + below low))) to all cells; without `low`, it is infinite.
       `above` and `below` have a number for each spread, `high` and `low` one for each cell. */
    SDP_CLONES static void sdp_take_in(
        float *cells, const float *high, const float *low, const float *above, const float *below, float start, float slope
    ) {
        float rise[SDP_BLOCK], fall[SDP_BLOCK], top;
        for (int i = 0; i < SDP_BLOCK; i++) rise[i] = above[i % SDP_SPREADS], fall[i] = below[i % SDP_SPREADS];
        for (int i = 0; i < SDP_CELLS; i += SDP_BLOCK) {
            int n = SDP_CELLS - i < SDP_BLOCK ? SDP_CELLS - i : SDP_BLOCK;
            float chance[SDP_BLOCK];
            for (int k = 0; k < n; k++) chance[k] = 1.0f / (1.0f + rise[k] * high[i + k]);
            if (low) for (int k = 0; k < n; k++) chance[k] -= 1.0f / (1.0f + fall[k] * low[i + k]);
            for (int k = 0; k < n; k++) cells[i + k] += sdp_log(start + slope * chance[k]);
        }
        top = sdp_top(cells);
        for (int i = 0; i < SDP_CELLS; i++) cells[i] -= top;
    }
    """
    void sdp_weigh(const float* cells, const float* prior, float* w) noexcept nogil
    void sdp_reach(const float* w, const float* squares, float mean, double* out) noexcept nogil
    void sdp_take_in(
        float* cells, const float* high, const float* low, const float* above, const float* below, float start, float slope
    ) noexcept nogil

cdef inline double _centre(int i) noexcept nogil:
    return -1.0 + 2.0 * i / (CENTRES - 1)


cdef inline double _spread(int k) noexcept nogil:
    return exp2(-6.0 + 0.5 * k)


cdef inline float _power(double x) noexcept nogil:
    """exp(x) within the floats, so that no product of two is 0 times infinity."""
    return <float> exp(min(max(x, -80.0), 80.0))


cdef void _fill() noexcept nogil:
    cdef int i, k
    for k in range(SPREADS):
        _rates[k], _logs[k], _squares[k] = 1.7 / _spread(k), log(_spread(k)), _spread(k) * _spread(k)
    for i in range(CELLS):
        _uniform[i] = 0.0
        k = i % SPREADS - SPREADS + 4
        _expected[i] = 2.0 * log(max(1.0 - _centre(i // SPREADS) * _centre(i // SPREADS), 0.3)) - log(1.0 + k * k)
    for i in range(2 * CENTRES - 1):
        for k in range(SPREADS):
            _steps[i * SPREADS + k] = _power(_rates[k] * 2.0 * (i - CENTRES + 1) / (CENTRES - 1))


_fill()


cdef const float* _split(double x, float* factors) noexcept nogil:
    """exp(1.7 (m - x)/s) of all cells: the product of what is returned and of the factor of the spread."""
    cdef int near = <int> ((min(max(x, -1.0), 1.0) + 1.0) * 0.5 * (CENTRES - 1) + 0.5), k
    for k in range(SPREADS):
        factors[k] = _power(_rates[k] * (_centre(near) - x))
    return _steps + (CENTRES - 1 - near) * SPREADS


cdef void take_in(float* cells, double low, double high, bint answer, double keep) noexcept nogil:
    """Take in one noisy answer, true with the probability `keep`: is the value of a column in [low, high)?

    `cells` (`CELLS`,) are logarithms of likelihoods; `low` may be minus infinity.

    F((x - m)/s) = 1/(1 + exp(1.7 (m - x)/s)). With c the centre next to x this is exp(1.7 (m - c)/s), which is in a
    table, times exp(1.7 (c - x)/s): a bit takes two exponentials a spread and not two a cell.
    """
    cdef float above[SPREADS]
    cdef float below[SPREADS]
    cdef double slope = 0.95 * (2.0 * keep - 1.0), start = 0.025 * (2.0 * keep - 1.0) + 1.0 - keep
    cdef const float* high_cells = _split(high, above)
    cdef const float* low_cells = _split(low, below)
    if not answer:
        slope, start = -slope, 1.0 - start
    if low == -INFINITY:
        low_cells = NULL
    sdp_take_in(cells, high_cells, low_cells, above, below, start, slope)


cdef void weigh(const float* cells, bint column, float* w) noexcept nogil:
    """Write the posterior as weights w (`CELLS`,) that add up to 1; a target has another prior than a `column`."""
    sdp_weigh(cells, &_expected[0] if column else &_uniform[0], w)


cdef void summarise_into(const float* w, bint column, double* out) noexcept nogil:
    """Write the moments of the posterior weights w of a `column` or of the target, and the next question, into a row.

    `out` is (`SUMMARY`,), in the order of its names; the next question is [low, high), and REACH is about ln r, with
    r^2 = s^2 + (m - E m)^2 being the mean squared distance of the values from E m.
    """
    cdef double mean = 0.0, square = 0.0, logs = 0.0, log_square = 0.0, below = 0.0, median = 1.0
    cdef float spreads[SPREADS]
    cdef float row
    cdef double m, variance, log_variance, typical, reach
    cdef bint found = False
    cdef int i, k
    for k in range(SPREADS):
        spreads[k] = 0.0
    for i in range(CENTRES):
        m, row = _centre(i), 0.0
        for k in range(SPREADS):
            row += w[i * SPREADS + k]
            spreads[k] += w[i * SPREADS + k]
        mean += row * m
        square += row * m * m
        if not found and below + row >= 0.5:
            found, median = True, m
        below += row
    for k in range(SPREADS):
        logs += spreads[k] * _logs[k]
        log_square += spreads[k] * _logs[k] * _logs[k]
    variance, log_variance = max(square - mean * mean, 0.0), max(log_square - logs * logs, 0.0)
    out[MEAN], out[VARIANCE], out[MEDIAN], out[LOG], out[LOG_VARIANCE] = mean, variance, median, logs, log_variance
    typical = exp(2.0 * logs)
    if variance / typical >= log_variance:
        out[LOW], out[HIGH] = -INFINITY, median
    else:
        reach = (0.75 if column else 1.15) * sqrt(typical + variance)
        out[LOW], out[HIGH] = median - reach, median + reach
    sdp_reach(w, _squares, mean, out + REACH)

"""Normal and Laplace variates from random words: ziggurats of 256 layers for 52-bit abscissas.

Source: Marsaglia and Tsang, "The ziggurat method for generating random variables", 2000.
"""

import math

from libc.math cimport exp, log1p


cdef Ziggurat _normal
cdef Ziggurat _laplace

cdef double NORMAL_EDGE = 3.6541528853610088
cdef double LAPLACE_EDGE = 7.69711747013104972


cdef void _fill(Ziggurat* table, double edge, double area, density, inverse):
    """Fill in a table. The tail begins at `edge`, each layer has the area `area`, and `density` is 1 at 0."""
    cdef int layer
    unit_ = 2.0**52
    base = area / density(edge)
    table.accept[0], table.accept[1] = int(edge / base * unit_), 0
    table.width[0], table.width[255] = base / unit_, edge / unit_
    table.height[0], table.height[255] = 1.0, density(edge)
    right = edge
    for layer in range(254, 0, -1):
        x = inverse(area / right + density(right))
        table.accept[layer + 1] = int(x / right * unit_)
        table.height[layer], table.width[layer] = density(x), x / unit_
        right = x


_fill(
    &_normal,
    NORMAL_EDGE,
    NORMAL_EDGE * math.exp(-(NORMAL_EDGE**2) / 2) + math.sqrt(math.pi / 2) * math.erfc(NORMAL_EDGE / math.sqrt(2)),
    lambda x: math.exp(-(x**2) / 2),
    lambda f: math.sqrt(-2 * math.log(f)),
)
_fill(
    &_laplace,
    LAPLACE_EDGE,
    (LAPLACE_EDGE + 1) * math.exp(-LAPLACE_EDGE),
    lambda x: math.exp(-x),
    lambda f: -math.log(f),
)


cdef const Ziggurat* normal_table() noexcept nogil:
    return &_normal


cdef const Ziggurat* laplace_table() noexcept nogil:
    return &_laplace


cdef Draw normal_rare(const Ziggurat* table, uint64_t* words, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """The variate of the word at `at` and the words after it."""
    cdef int layer
    cdef double sign, x, low
    while at + 1 < end:
        layer = words[at] & 0xFF
        sign = sign_of(words[at])
        x = <double> abscissa(words[at]) * table.width[layer]
        if is_common(table, words[at]):
            return Draw(sign * x, at + 1)
        if layer == 0:
            at += 1
            while at + 1 < end:
                x = -log1p(-unit(words[at])) / NORMAL_EDGE
                at += 2
                if -2 * log1p(-unit(words[at - 1])) > x * x:
                    return Draw(sign * (NORMAL_EDGE + x), at)
            break
        low = table.height[layer]
        at += 2
        if low + unit(words[at - 1]) * (table.height[layer - 1] - low) < exp(-0.5 * x * x):
            return Draw(sign * x, at)
    return Draw(0.0, end + 1)


cdef Draw laplace_rare(const Ziggurat* table, uint64_t* words, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """As `normal_rare`. The tail is the edge plus a fresh exponential, so its resolution does not become coarser."""
    cdef int layer
    cdef double sign, x, low, start = 0.0
    while at + 1 < end:
        layer = words[at] & 0xFF
        sign = sign_of(words[at])
        x = <double> abscissa(words[at]) * table.width[layer]
        if is_common(table, words[at]):
            return Draw(sign * (start + x), at + 1)
        if layer == 0:
            start += LAPLACE_EDGE
            at += 1
            continue
        low = table.height[layer]
        at += 2
        if low + unit(words[at - 1]) * (table.height[layer - 1] - low) < exp(-x):
            return Draw(sign * (start + x), at)
    return Draw(0.0, end + 1)

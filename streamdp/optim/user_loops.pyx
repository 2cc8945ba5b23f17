"""A compiled loop that averages the gradients of each user's records."""

from libc.stdint cimport int64_t

cimport numpy as cnp

from streamdp.optim.loops cimport Records, gradient_of, records_of
from streamdp.privacy.arrays cimport copy_row, entry, matrix, scratch, whole_numbers, wipe

cnp.import_array()


def average_gradients(
    spec,
    theta,
    X,
    y,
    cnp.ndarray starts not None,
    cnp.ndarray users not None,
    cnp.ndarray out not None,
):
    """Write the average gradient at theta of each of k users into the rows of `out` (k, d).

    X (N, p) and y (N,) are the records of all users: user u has the rows starts[u] to starts[u + 1] - 1, at least one;
    `starts` is (users + 1,) int64, `users` (k,) int64 are indices. `spec` is that of `loops.gradient`. Raises
    `TypeError` for arrays of another type or shape.
    """
    cdef Records records
    records_of(spec, theta, X, y, &records)
    cdef double* means = matrix(out)
    cdef int64_t* first = whole_numbers(starts)
    cdef int64_t* chosen = whole_numbers(users)
    cdef Py_ssize_t p = records.at.p, d = records.at.d, count = len(users), k, i, j
    cdef double* mean
    cdef double* room = scratch(p + d + 1)
    with nogil:
        for k in range(count):
            mean = means + k * d
            for j in range(d):
                mean[j] = 0.0
            for i in range(first[chosen[k]], first[chosen[k] + 1]):
                copy_row(&records.X, i, room)
                gradient_of(&records.at, room, entry(&records.y, i, 0), room + p)
                for j in range(d):
                    mean[j] += room[p + j]
            for j in range(d):
                mean[j] /= first[chosen[k] + 1] - first[chosen[k]]
    wipe(room, p + d + 1)

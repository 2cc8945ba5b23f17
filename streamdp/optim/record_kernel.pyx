"""What learns one record at a time, with arguments that stay the same: a loop over rows checks them in every call."""

cimport numpy as cnp

from streamdp.privacy.arrays cimport copy_row, entry, matrix, whole_numbers

cnp.import_array()


cdef class RecordKernel:
    """The base of kernels. A kernel writes to arrays of its maker, which must stay where they are."""

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        """Learn a clean record. False, and nothing is changed but words that are used up: the loop must learn it.

        `X` and `y` are one row. `room` has the `room` numbers that the kernel asks for, and is overwritten by the caller.
        `words` are `end` random words, NULL if the kernel does not draw.
        """
        return False


cdef class RecordGate:
    """The base of what admits the subject of a record before a kernel learns it: `ledger.subject_gate`."""

    cdef int admit(self, subject) except -1:
        """Charge a record of a `subject`: `CHARGED`. Nothing is charged if it is not admitted this way, `LATER`, and if
        the subject has all records in the open release that it may have, `LEFT_OUT`."""
        return LATER

    cdef int undo(self) except -1:
        """Take the last charge back, of a record that was not learned. Nothing else may have come in between."""
        return 0


cdef class RowStore(RecordKernel):
    """Keeps records until a window ends: `rows` (m, p + 1) with the target last, and `users` (m,), a new one for each.

    `counts` (2,): how many rows are filled, and the number of the next user. `users` and `counts` are int64.
    """

    def __init__(self, cnp.ndarray rows not None, cnp.ndarray users not None, cnp.ndarray counts not None):
        self._kept, self.width, self.room, self.draws = (rows, users, counts), cnp.PyArray_DIM(rows, 1) - 1, 0, False
        self._rows, self._users, self._counts = matrix(rows), whole_numbers(users), whole_numbers(counts)
        self._most = min(cnp.PyArray_DIM(rows, 0), cnp.PyArray_DIM(users, 0))

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept:
        cdef int64_t place = self._counts[0]
        if place >= self._most:
            return False
        self._users[place] = self._counts[1]
        self._counts[1] += 1
        self._counts[0] += 1
        copy_row(X, 0, self._rows + place * (self.width + 1))
        self._rows[place * (self.width + 1) + self.width] = entry(y, 0, 0)
        return True

"""What learns one record at a time, with arguments that stay the same: a loop over rows checks them in every call."""


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

    cdef bint admit(self, subject) except -1:
        """Charge a record of a `subject`. False, and nothing is charged, if it is not admitted this way."""
        return False

    cdef int undo(self) except -1:
        """Take the last charge back, of a record that was not learned. Nothing else may have come in between."""
        return 0

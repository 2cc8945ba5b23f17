"""What admits and learns one record at a time, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t

from streamdp.privacy.arrays cimport Rows


cdef class RecordKernel:
    cdef object _kept  # whose memory a subclass points to
    cdef Py_ssize_t width  # p
    cdef Py_ssize_t room
    cdef bint draws  # whether it needs random words

    cdef bint learn(self, const Rows* X, const Rows* y, double* room, uint64_t* words, Py_ssize_t end) noexcept


cdef enum:
    # What becomes of a record: its caller asks another way, or it is charged, or left out.
    LATER, CHARGED, LEFT_OUT


cdef class RecordGate:
    cdef int admit(self, subject) except -1
    cdef int undo(self) except -1


cdef class RowStore(RecordKernel):
    cdef double* _rows
    cdef int64_t* _users
    cdef int64_t* _counts
    cdef Py_ssize_t _most

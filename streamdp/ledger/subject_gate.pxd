"""The admission of single records, for other compiled modules."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from streamdp.ledger.admission cimport Cap
from streamdp.ledger.rows cimport ROW
from streamdp.optim.record_kernel cimport RecordGate


cdef class SubjectGate(RecordGate):
    cdef object _account, _begin, _acquire, _leave, _release, _person, _rows, _index
    cdef Cap _cap
    cdef double _terms[4]
    cdef double _before[ROW]
    cdef int64_t _slot
    cdef int64_t* _asked
    cdef int32_t* _entries
    cdef uint64_t* _keys
    cdef double* _row
    cdef uint8_t* _pending
    cdef Py_ssize_t _room, _several
    cdef uint64_t _mask

    cdef int _look(self) except -1
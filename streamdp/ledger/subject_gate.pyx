"""The admission of one record at a time by the rows in memory: what `Ledger.join` does for a plain record, compiled.

It admits a subject that is plain text, bytes or a whole number and has no record in the open release yet, and leaves a
record out if the release takes no more of its subject. It leaves all others to `Ledger.join`, and a record that is over
its cap, which is counted there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.unicode cimport PyUnicode_AsASCIIString, PyUnicode_CheckExact
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cimport numpy as cnp

from streamdp.ledger.admission cimport admit_rows
from streamdp.ledger.row_index cimport add_keys
from streamdp.ledger.rows cimport ROW
from streamdp.optim.record_kernel cimport CHARGED, LATER, LEFT_OUT, RecordGate
from streamdp.privacy.arrays cimport flags, matrix, short_numbers, vector, whole_numbers, word_matrix

cnp.import_array()


cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(object)


cdef extern from *:
    """
    #ifdef _WIN32
    #include <process.h>
    #define sdp_own_process (long)_getpid
    #else
    #include <unistd.h>
    #define sdp_own_process (long)getpid
    #endif
    """
    long own_process "sdp_own_process"() noexcept nogil


cdef bytes decimal(long long number):
    """A number as the text of its digits, with a minus below 0."""
    cdef char text[20]
    cdef Py_ssize_t at = sizeof(text)
    cdef unsigned long long left = number
    if number < 0:
        left = -left
    while left or at == sizeof(text):
        at -= 1
        text[at] = <char> (48 + left % 10)
        left //= 10
    if number < 0:
        at -= 1
        text[at] = 45
    return text[at : sizeof(text)]


cdef class SubjectGate(RecordGate):
    """Admits records that spend the same.

    `account`: the `MemoryRows`, of which no database has more. `lock`: that of the ledger. `begin`: starts the hash of a
    subject. `terms`: (4,) what the first record in a release adds to the sums of its row. `cap`: the `CapNumbers` of the ledger.
    `release`: the open `Release` that records join; None: each is a release of its own.
    """

    def __init__(self, account, lock, begin, cnp.ndarray terms not None, cap, release):
        self._account, self._begin, self._release = account, begin, release
        self._acquire, self._leave = lock.acquire, lock.release
        self._several = -1 if release is None or release.most is None else release.most
        self._cap.kind, self._cap.most, self._cap.most_delta = cap
        if cnp.PyArray_DIM(terms, 0) != 4:
            raise TypeError("expected what a record adds to four sums")
        memcpy(self._terms, vector(terms), 4 * sizeof(double))

    cdef int _look(self) except -1:
        """Point to the arrays of the cache, which replaces them when it grows."""
        cdef object cache = self._account.cache
        self._rows = None
        self._row, self._keys, self._pending = matrix(cache.rows), word_matrix(cache.keys), flags(cache.pending)
        self._entries, self._asked = short_numbers(cache.index), whole_numbers(cache.asked)
        self._room, self._mask = cnp.PyArray_DIM(cache.rows, 0), cnp.PyArray_DIM(cache.index, 0) - 1
        self._rows, self._index = cache.rows, cache.index
        return 0

    cdef int admit(self, subject) except -1:
        cdef bytes person
        cdef dict people
        cdef const uint8_t* text
        cdef uint8_t present = True, admitted = False
        cdef uint64_t key[2]
        cdef int64_t n
        cdef Py_ssize_t i
        cdef long long number
        cdef int large = 0
        if PyUnicode_CheckExact(subject):
            if not PyUnicode_IS_ASCII(subject):
                return LATER
            person = PyUnicode_AsASCIIString(subject)
        elif PyBytes_CheckExact(subject):
            person = subject
        elif PyLong_CheckExact(subject):
            number = PyLong_AsLongLongAndOverflow(subject, &large)
            if large:
                return LATER
            person = decimal(number)
        else:
            return LATER
        text = <const uint8_t*> PyBytes_AS_STRING(person)
        for i in range(PyBytes_GET_SIZE(person)):
            if text[i] >= 128 or text[i] == 46 or text[i] == 43:  # "." and "+" may be those of a float
                return LATER
        if self._release is not None:
            people = self._release.people
            if person in people:
                return LEFT_OUT if 0 <= self._several <= people[person] else LATER
        start = self._begin()
        start.update(person)
        memcpy(key, PyBytes_AS_STRING(start.digest()), 2 * sizeof(uint64_t))
        self._acquire()
        try:
            cache = self._account.cache
            if own_process() != <long> self._account.process:  # a fork, or closed
                return LATER
            if cache.rows is not self._rows or cache.index is not self._index:
                self._look()
            n = self._asked[0]
            if n >= self._room:
                return LATER
            self._asked[0] = add_keys(key, &present, 1, self._keys, self._entries, self._mask, n, &self._slot)
            if self._slot == n:
                cache.n = n + 1
            memcpy(self._before, self._row + ROW * self._slot, ROW * sizeof(double))
            admit_rows(&self._slot, 1, self._terms, 0, self._row, self._pending, &self._cap, 1, &admitted)
        finally:
            self._leave()
        if not admitted:
            return LATER
        if self._release is not None:
            self._person = person
            people[person] = 1
        return CHARGED

    cdef int undo(self) except -1:
        if self._release is not None:
            del self._release.people[self._person]
        memcpy(self._row + ROW * self._slot, self._before, ROW * sizeof(double))

"""Answers about a model, for other compiled modules."""

from libc.stdint cimport int64_t, uint64_t


cdef enum:
    # As in `plan`.
    NOTHING, CONSTANT, ERROR, OTHER


cdef class Errors:
    cdef tuple _given
    cdef int _form
    cdef double _tau, _unit, _low, _high, _reach, _constant, _threshold, _excess, _least, _most
    cdef bint _exp
    cdef Py_ssize_t _classes, _usual, _cells
    cdef readonly bint rounds  # whether groups are rounded at random
    cdef double* _share
    cdef double* _log
    cdef double* _end

    cdef double _bound(self, bint other, bint high) noexcept
    cdef double _value(self, bint other, const double* scores, Py_ssize_t outputs, double y) noexcept
    cdef double _odds(self, const double* scores, Py_ssize_t outputs, Py_ssize_t k) noexcept
    cdef Py_ssize_t _cell(self, double score, double y) noexcept
    cdef int64_t _group(self, double y, const double* known, uint64_t word) noexcept
    cdef void _vector(
        self, const double* weight, double cell, const double* score, Py_ssize_t outputs, double y, double* found
    ) noexcept
    cdef void _answer(
        self,
        int64_t question,
        const double* score,
        Py_ssize_t outputs,
        double y,
        double keep,
        const uint64_t* word,
        double* total,
        double* done,
        double* known,
    ) noexcept
    cdef void _say_cell(self, Py_ssize_t cell, double keep, const uint64_t* word, double* total) noexcept
    cdef void _learn_constant(self, double y, double keep, const uint64_t* word, double* done, double* known) noexcept


cdef class Asking:
    cdef public object predictor
    cdef object _rng
    cdef Errors _errors
    cdef tuple _kept
    cdef bint _buffered
    cdef double _keep
    cdef int64_t* _question
    cdef int64_t* _quiet
    cdef double* _total
    cdef double* _done
    cdef double* _known

    cdef int64_t next(self) noexcept
    cdef void passed(self) noexcept
    cdef uint64_t* words(self, uint64_t* room) except? NULL
    cdef void answer(
        self, int64_t question, const double* scores, Py_ssize_t outputs, double y, uint64_t* words
    ) except *


cdef class Adding(Asking):
    cdef double _weight[2]
    cdef double _cell, _grid
    cdef int64_t _one
    cdef int64_t* _count
    cdef int64_t* _score

"""Checked access of compiled loops to numpy's arrays, by pointers: it takes some nanoseconds, a memoryview 200.

Every function raises `TypeError` for another type of numbers or another layout than the loop reads. Vectors have no
gaps, and the rows of a matrix follow each other without gaps.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t
from libc.string cimport memset

cimport numpy as cnp


cdef inline void* _flat(cnp.ndarray array, int kind, int dimensions) except? NULL:
    if cnp.PyArray_TYPE(array) != kind or cnp.PyArray_NDIM(array) != dimensions or not cnp.PyArray_IS_C_CONTIGUOUS(array):
        raise TypeError("a compiled loop got an array of another type, shape or layout")
    return cnp.PyArray_DATA(array)


cdef inline double* vector(cnp.ndarray array) except? NULL:
    return <double*> _flat(array, cnp.NPY_FLOAT64, 1)


cdef inline double* matrix(cnp.ndarray array) except? NULL:
    return <double*> _flat(array, cnp.NPY_FLOAT64, 2)


cdef inline int64_t* whole_numbers(cnp.ndarray array) except? NULL:
    return <int64_t*> _flat(array, cnp.NPY_INT64, 1)


cdef inline int64_t* whole_matrix(cnp.ndarray array) except? NULL:
    return <int64_t*> _flat(array, cnp.NPY_INT64, 2)


cdef inline uint64_t* random_words(cnp.ndarray array) except? NULL:
    return <uint64_t*> _flat(array, cnp.NPY_UINT64, 1)


cdef inline uint64_t* word_matrix(cnp.ndarray array) except? NULL:
    return <uint64_t*> _flat(array, cnp.NPY_UINT64, 2)


cdef inline int32_t* short_numbers(cnp.ndarray array) except? NULL:
    return <int32_t*> _flat(array, cnp.NPY_INT32, 1)


cdef inline uint8_t* flags(cnp.ndarray array) except? NULL:
    return <uint8_t*> _flat(array, cnp.NPY_BOOL, 1)


cdef inline uint8_t* byte_vector(cnp.ndarray array) except? NULL:
    return <uint8_t*> _flat(array, cnp.NPY_UINT8, 1)


cdef inline uint8_t* byte_matrix(cnp.ndarray array) except? NULL:
    return <uint8_t*> _flat(array, cnp.NPY_UINT8, 2)


cdef struct Rows:
    # A matrix or vector of doubles with any strides, as they come from data frames.
    const char* data
    Py_ssize_t n
    Py_ssize_t width
    Py_ssize_t down
    Py_ssize_t right


cdef inline int rows_of(cnp.ndarray array, Rows* out) except -1:
    """Describe a matrix (n, width), or a vector (n,) as n rows of one number."""
    cdef int dimensions = cnp.PyArray_NDIM(array)
    if cnp.PyArray_TYPE(array) != cnp.NPY_FLOAT64 or not 1 <= dimensions <= 2 or not cnp.PyArray_ISALIGNED(array):
        raise TypeError("a compiled loop got an array of another type or shape")
    out.data = <const char*> cnp.PyArray_DATA(array)
    out.n = cnp.PyArray_DIM(array, 0)
    out.down = cnp.PyArray_STRIDE(array, 0)
    out.width = cnp.PyArray_DIM(array, 1) if dimensions == 2 else 1
    out.right = cnp.PyArray_STRIDE(array, 1) if dimensions == 2 else 0
    return 0


cdef inline double entry(const Rows* rows, Py_ssize_t i, Py_ssize_t j) noexcept nogil:
    """The number in row i and column j."""
    return (<const double*> (rows.data + i * rows.down + j * rows.right))[0]


cdef inline void copy_row(const Rows* rows, Py_ssize_t i, double* out) noexcept nogil:
    """Copy row i."""
    cdef Py_ssize_t j
    for j in range(rows.width):
        out[j] = entry(rows, i, j)


cdef inline double* scratch(Py_ssize_t n) except NULL:
    """Memory for n doubles, zeros. `wipe` returns it."""
    cdef double* room = <double*> PyMem_RawMalloc((n + 1) * sizeof(double))
    if room == NULL:
        raise MemoryError
    memset(room, 0, (n + 1) * sizeof(double))
    return room


cdef extern from *:
    """
    /* A compiler may leave out a memset before free; a call through a volatile pointer stays. */
    static void *(*const volatile sdp_memset)(void *, int, size_t) = memset;
    """
    void* sdp_memset(void*, int, size_t) noexcept nogil


cdef inline void wipe(double* room, Py_ssize_t n) noexcept:
    """Overwrite scratch memory, so that nothing of a record stays in it, and give it back."""
    sdp_memset(room, 0, (n + 1) * sizeof(double))
    PyMem_RawFree(room)

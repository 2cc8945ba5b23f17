"""The encoder of a schema: raw values of records to columns, compiled; one table for whole columns and single records.

Every column is a number of one raw value, or the product of other columns; `transforms` says which. A dict that has
exactly the declared names, with finite numbers and declared categories, is read here. Any other record is read by its
caller, who also says what is wrong with it, and becomes columns here. No value stays here.
"""

from cpython.bool cimport PyBool_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_Check
from cpython.list cimport PyList_GET_ITEM
from cpython.long cimport PyLong_AsDouble, PyLong_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_Compare
from libc.math cimport INFINITY, M_PI, asinh, cos, fmod, isfinite, log, pow, sin
from libc.stdint cimport int64_t, uint8_t, uint32_t

import numpy as np

cimport numpy as cnp

from streamdp.data.records import NO_BYTE

from streamdp.privacy.arrays cimport Rows, entry, matrix, rows_of, vector, whole_numbers

cnp.import_array()

cdef enum:
    ADOPTIONS = 256  # so often the keys of a record are kept, to be recognised in the next one
    ROW = 6  # of the table of columns: kind, three constants, origin, unit
    NUMBER, LINEAR, LOG, ASINH, POWER, BIN, SIN, COS, EQUAL, BYTE

_KINDS = {
    "number": NUMBER, "code": NUMBER, "linear": LINEAR, "log": LOG, "asinh": ASINH, "power": POWER, "bin": BIN, "sin": SIN, "cos": COS,
    "level": EQUAL, "bucket": EQUAL, "byte": BYTE,
}


cdef inline double curved(int kind, double value, double constant) noexcept nogil:
    if kind == LOG:
        return log(value)
    return asinh(value / constant) if kind == ASINH else pow(value, constant)


cdef inline double scaled(double value, double low, double high) noexcept nogil:
    return min(max((value - low) / (high - low) * 2.0 - 1.0, -1.0), 1.0)


cdef inline double column(const double* of, double value) noexcept nogil:
    """The column that is described by a row of the table, of the raw value or of the byte of a text."""
    cdef int kind = <int> of[0]
    cdef double turned
    if kind == LINEAR:
        return scaled(value, of[1], of[2])
    if kind == NUMBER:
        return value
    if kind == EQUAL:
        return value == of[1]
    if kind == BYTE:
        return (value - of[4]) / of[5]
    if kind == BIN:
        return of[1] <= value < of[2]
    if kind == SIN or kind == COS:
        turned = fmod(value, of[1])
        turned = (turned + of[1] if turned < 0.0 else turned) * (2.0 * M_PI / of[1])
        return sin(turned) if kind == SIN else cos(turned)
    return scaled(curved(kind, min(max(value, of[1]), of[2]), of[3]), of[4] - of[5], of[4] + of[5])


def curve(kind, double value, double constant):
    """Return the log, asinh or power of a value within the bounds, without scaling.

    `kind`: which of them. `value`: the value. `constant`: the scale of asinh, or the exponent.
    """
    return curved(_KINDS[kind], value, constant)


def column_of(piece, double value):
    """Return what one piece of a number makes of one value.

    `piece`: a `transforms.Piece`. `value`: the value.
    """
    cdef cnp.ndarray table = _table([piece])
    return column(matrix(table), value)


cdef _table(pieces):
    return np.array([[_KINDS[p.kind], *p.at, *[0.0] * (3 - len(p.at)), p.origin, p.unit] for p in pieces], dtype=float)


cdef inline bint number_of(PyObject* given, double* out) except -1:
    """A finite number as a double; False if it is something else, or a whole number that may not be exact."""
    if PyFloat_Check(<object> given):
        out[0] = PyFloat_AS_DOUBLE(<object> given)
    elif PyLong_CheckExact(<object> given) and -(1 << 53) <= <object> given <= 1 << 53:
        out[0] = PyLong_AsDouble(<object> given)
    else:
        return False
    return isfinite(out[0])


cdef class RowEncoder:
    """What is declared about a record.

    `features`: for each of the m raw values its name, the codes of its texts, or None for a number, and its pieces.
    `products`: the pieces of products, whose columns are the last ones. `plain`: whether records are read here.
    `targets`: the encoded targets of the classes, or the bounds (low, high) to which numbers are clipped; None: numbers as
    they come.
    """

    def __init__(self, features, products=(), bint plain=True, targets=None):
        cdef cnp.ndarray table, starts, lengths, factors
        self._given = (features, products, plain, targets)
        self._names = tuple(name for name, _, _ in features)
        self._codes = tuple(codes for _, codes, _ in features)
        self._keys, self._adoptions, self._plain = list(self._names), 0, plain
        self._classes = targets if isinstance(targets, dict) else None
        self._low, self._high = (-INFINITY, INFINITY) if targets is None or self._classes is not None else targets
        pieces = [piece for _, _, own in features for piece in own]
        table = _table(pieces)
        starts = np.cumsum([0, *(len(own) for _, _, own in features)], dtype=np.int64)
        lengths = np.array([len(own) if own[0].kind == "byte" else 1 for _, _, own in features], dtype=np.int64)
        factors = np.array([number for piece in products for number in (len(piece.at), *piece.at)], dtype=np.int64)
        self._tables = table, starts, lengths, factors
        self._column, self._start = matrix(table), whole_numbers(starts)
        self._length, self._factor = whole_numbers(lengths), whole_numbers(factors)
        self._products, self.width = len(products), len(pieces) + len(products)

    def __reduce__(self):
        return RowEncoder, self._given

    cdef void _put(self, Py_ssize_t k, double value, double* out) noexcept nogil:
        """Write the columns of the k-th raw value, which is no text."""
        cdef Py_ssize_t j
        for j in range(self._start[k], self._start[k + 1]):
            out[j] = column(self._column + j * ROW, value)

    cdef void _multiply(self, double* out) noexcept nogil:
        """Write the columns of products."""
        cdef int64_t* at = self._factor
        cdef Py_ssize_t j, i
        for j in range(self.width - self._products, self.width):
            out[j] = 1.0
            for i in range(at[0]):
                out[j] *= out[at[i + 1]]
            at += at[0] + 1

    cdef PyObject* _value(self, PyObject* x, Py_ssize_t k, Py_ssize_t* place) except? NULL:
        """The value of the k-th name; NULL if x has none. The names are taken in turn, `place` being 0 for the first.

        While the keys of x come in the order of the names and are known objects, nothing is looked up.
        """
        cdef PyObject* key
        cdef PyObject* value
        cdef PyObject* name = PyList_GET_ITEM(self._keys, k)
        if place[0] >= 0 and PyDict_Next(<object> x, place, &key, &value):
            if key == name:
                return value
            if (
                self._adoptions < ADOPTIONS
                and PyUnicode_CheckExact(<object> key)
                and PyUnicode_CheckExact(<object> name)
                and PyUnicode_Compare(<object> key, <object> name) == 0
            ):
                self._adoptions += 1
                self._keys[k] = <object> key
                return value
        place[0] = -1
        return PyDict_GetItemWithError(<object> x, <object> name)

    cdef bint fill(self, x, double* out) except -1:
        """Write the columns of x; False if it is not read here."""
        cdef Py_ssize_t k, place = 0
        cdef PyObject* found
        cdef PyObject* code
        cdef double value
        if not self._plain or type(x) is not dict or len(<dict> x) != len(self._names):
            return False
        for k in range(len(self._names)):
            found = self._value(<PyObject*> x, k, &place)
            if found == NULL:
                return False
            if <object> PyTuple_GET_ITEM(self._codes, k) is not None:
                if not PyUnicode_CheckExact(<object> found):
                    return False
                code = PyDict_GetItemWithError(<object> PyTuple_GET_ITEM(self._codes, k), <object> found)
                if code == NULL:
                    return False
                value = <object> code
            elif not number_of(found, &value):
                return False
            self._put(k, value, out)
        self._multiply(out)
        return True

    cdef bint target(self, y, double* out) except -1:
        """The encoded target; False if it is not read here."""
        cdef PyObject* found
        if self._classes is not None:
            if not (PyBool_Check(y) or PyUnicode_CheckExact(y) or PyLong_CheckExact(y)):
                return False
            found = PyDict_GetItemWithError(self._classes, y)
            if found == NULL:
                return False
            out[0] = <object> found
            return True
        if not number_of(<PyObject*> y, out):
            return False
        out[0] = min(max(out[0], self._low), self._high)
        return True

    def pack(self, x, y, cnp.ndarray out not None):
        """Write a record and its target; False, with anything in `out`, if they are not read here.

        `x`: the record. `y`: the target. `out`: (p + 1,), overwritten.
        """
        cdef double* row = vector(out)
        if len(out) != self.width + 1:
            raise TypeError("expected room for the columns and the target")
        return self.target(y, row + self.width) and self.fill(x, row)

    def pack_rows(self, list records not None, cnp.ndarray out not None):
        """Write records; False, with anything in `out`, if one of them is not read here.

        `records`: n records. `out`: (n, p), overwritten.
        """
        cdef double* row = matrix(out)
        if cnp.PyArray_DIM(out, 0) != len(records) or cnp.PyArray_DIM(out, 1) != self.width:
            raise TypeError("expected room for the columns of each record")
        for x in records:
            if not self.fill(x, row):
                return False
            row += self.width
        return True

    def columns(self, values):
        """Return the columns (n, p) of raw values.

        `values`: (n, w), in any layout: numbers, codes of categories or buckets, and of a text each of its bytes.
        """
        cdef cnp.ndarray out
        cdef Rows rows
        cdef Py_ssize_t first, last, i, j, k, at, raw, m = len(self._names), p = self.width
        cdef double* row
        cdef const double* of
        cdef double low, high
        rows_of(values, &rows)
        if rows.width != sum(self._tables[2].tolist()):
            raise TypeError("expected the raw values of each feature")
        out = np.empty((rows.n, p))
        row = matrix(out)
        with nogil:
            for first in range(0, rows.n, 512):  # column by column, of as many rows as are near the processor
                last, raw = min(first + 512, rows.n), 0
                for k in range(m):
                    for j in range(self._start[k], self._start[k + 1]):
                        of, low, high = self._column + j * ROW, self._column[j * ROW + 1], self._column[j * ROW + 2]
                        at = raw + <Py_ssize_t> low if of[0] == BYTE else raw
                        if of[0] == LINEAR:
                            for i in range(first, last):
                                row[i * p + j] = scaled(entry(&rows, i, at), low, high)
                        else:
                            for i in range(first, last):
                                row[i * p + j] = column(of, entry(&rows, i, at))
                    raw += self._length[k]
                if self._products:
                    for i in range(first, last):
                        self._multiply(row + i * p)
        return out


def buckets(texts, uint32_t count):
    """Return the bucket (n,) of each text: FNV-1a of 32 bits of its UTF-8 bytes, modulo `count`; the same everywhere.

    `texts`: a list of n texts. `count`: the number of buckets.
    """
    cdef Py_ssize_t i, k
    cdef uint32_t found
    cdef bytes data
    cdef cnp.ndarray out = np.empty(len(texts))
    for i, text in enumerate(texts):
        data, found = text.encode("utf-8", "surrogatepass"), 2166136261
        for k in range(PyBytes_GET_SIZE(data)):
            found = (found ^ <uint8_t> PyBytes_AS_STRING(data)[k]) * <uint32_t> 16777619
        vector(out)[i] = found % count
    return out


def first_bytes(texts, Py_ssize_t length):
    """Return the first bytes (n, length) of each text: whole characters, then `NO_BYTE`.

    `texts`: a list of n texts. `length`: the number of bytes. Raises `UnicodeEncodeError` for half of a surrogate pair.
    """
    cdef Py_ssize_t i, k, n
    cdef bytes data
    cdef cnp.ndarray out = np.full((len(texts), length), float(NO_BYTE))
    for i, text in enumerate(texts):
        data = text.encode()
        n = min(PyBytes_GET_SIZE(data), length)
        while 0 < n < PyBytes_GET_SIZE(data) and <uint8_t> PyBytes_AS_STRING(data)[n] >> 6 == 2:
            n -= 1  # the next byte belongs to the last character
        for k in range(n):
            matrix(out)[i * length + k] = <uint8_t> PyBytes_AS_STRING(data)[k]
    return out

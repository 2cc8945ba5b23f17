"""The numbers of one record scaled by declared bounds, compiled."""

from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM


def scale_floats(dict record not None, dict bounds not None):
    """Scale the floats of a record as `columns.scale_number`, in place. Returns the names of other values.

    `bounds` has (low, high), two floats, by name. Names that the record lacks are ignored.
    """
    cdef PyObject* name
    cdef PyObject* pair
    cdef PyObject* found
    cdef Py_ssize_t place = 0
    cdef double low, high, value
    cdef list others = []
    while PyDict_Next(bounds, &place, &name, &pair):
        found = PyDict_GetItemWithError(record, <object> name)
        if found == NULL:
            continue
        if not PyFloat_CheckExact(<object> found):
            others.append(<object> name)
            continue
        low = PyFloat_AS_DOUBLE(<object> PyTuple_GET_ITEM(<object> pair, 0))
        high = PyFloat_AS_DOUBLE(<object> PyTuple_GET_ITEM(<object> pair, 1))
        value = (PyFloat_AS_DOUBLE(<object> found) - low) / (high - low) * 2.0 - 1.0
        record[<object> name] = min(max(value, -1.0), 1.0)
    return others

# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The functions of ``kernels.py`` as one pass each, for a compiled wheel. reference.py is the reference and describes them.

The reference handles arrays of other types than the table's columns, which a site's filters and weighers may return, and arrays
with NaN. Memory is accessed through NumPy's C API, because Python's buffer protocol takes longer than a pass at 1,000 hosts.
"""

cimport numpy as cnp
from libc.math cimport INFINITY
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from scheduler.table import reference

cnp.import_array()

cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLongMask(object) except? 0xFFFFFFFFFFFFFFFF

cdef enum:
    INSERTION_SORT_LIMIT = 64  # longer results are ordered by NumPy's sort
    COUNT_BLOCK = 128  # elements whose count fits in a byte
    COMPARE_LIMIT = 2048  # NumPy compares longer arrays faster, because its vectors are wider than those that C may assume

cdef double UNIT = 2.0 ** -53


cdef inline bint _is(object array, int kind, Py_ssize_t size) noexcept:
    """Whether it is one of the table's kind, of this size (-1: of any)."""
    if type(array) is not cnp.ndarray:
        return False
    given = <cnp.ndarray> array
    return (
        cnp.PyArray_TYPE(given) == kind
        and cnp.PyArray_NDIM(given) == 1
        and (size < 0 or cnp.PyArray_DIM(given, 0) == size)
        and cnp.PyArray_ISCARRAY_RO(given)
    )


cdef inline Py_ssize_t _size(object array) noexcept:
    return cnp.PyArray_DIM(<cnp.ndarray> array, 0)


cdef inline void *_of(object array) noexcept:
    return cnp.PyArray_DATA(<cnp.ndarray> array)


cdef inline object _new(Py_ssize_t size, int kind):
    cdef cnp.npy_intp shape = size
    return cnp.PyArray_SimpleNew(1, &shape, kind)


cdef inline uint64_t _mixed(object number) except? 0xFFFFFFFFFFFFFFFF:
    cdef uint64_t word = <uint64_t> PyLong_AsUnsignedLongLongMask(number) * <uint64_t> 0x9E3779B97F4A7C15
    word = (word ^ (word >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * <uint64_t> 0x94D049BB133111EB
    return word ^ (word >> 31)


cdef inline double _noise(uint64_t salt, uint64_t word, double unit) noexcept:
    return <double> <int64_t> (((salt ^ word) * <uint64_t> 0xBF58476D1CE4E5B9) >> 11) * unit


def mixed(number):
    return _mixed(number)


def noise(salts, seed, double below):
    if not _is(salts, cnp.NPY_UINT64, -1):
        return reference.noise(salts, seed, below)
    cdef Py_ssize_t at, size = _size(salts)
    cdef uint64_t word = _mixed(seed)
    cdef double unit = below * UNIT
    found = _new(size, cnp.NPY_DOUBLE)
    cdef const uint64_t *salt = <const uint64_t *> _of(salts)
    cdef double *into = <double *> _of(found)
    for at in range(size):
        into[at] = _noise(salt[at], word, unit)
    return found


def untied(scores, positions, salts, rows, seed, double below):
    if not (_is(scores, cnp.NPY_DOUBLE, -1) and _is(positions, cnp.NPY_INT64, -1) and _is(salts, cnp.NPY_UINT64, -1)):
        return reference.untied(scores, positions, salts, rows, seed, below)
    cdef Py_ssize_t at, row, size = _size(positions), last = _size(scores), end = _size(salts)
    if not _is(rows, cnp.NPY_INT64, size):
        return reference.untied(scores, positions, salts, rows, seed, below)
    cdef uint64_t word = _mixed(seed)
    cdef double unit = below * UNIT
    found = _new(size, cnp.NPY_DOUBLE)
    cdef const double *score = <const double *> _of(scores)
    cdef const int64_t *position = <const int64_t *> _of(positions)
    cdef const int64_t *places = <const int64_t *> _of(rows)
    cdef const uint64_t *salt = <const uint64_t *> _of(salts)
    cdef double *into = <double *> _of(found)
    for at in range(size):
        row = places[at]
        if not (0 <= position[at] < last and 0 <= row < end):
            return reference.untied(scores, positions, salts, rows, seed, below)
        into[at] = score[position[at]] + _noise(salt[row], word, unit)
    return found


def narrowed(mask, passed):
    if not (_is(mask, cnp.NPY_BOOL, -1) and _is(passed, cnp.NPY_BOOL, _size(mask)) and cnp.PyArray_ISWRITEABLE(mask)):
        return reference.narrowed(mask, passed)
    cdef Py_ssize_t at, here, until, size = _size(mask), total = 0
    cdef uint8_t *into = <uint8_t *> _of(mask)
    cdef const uint8_t *other = <const uint8_t *> _of(passed)
    cdef uint8_t both, few
    for here in range(0, size, COUNT_BLOCK):
        until = min(here + COUNT_BLOCK, size)
        few = 0
        for at in range(here, until):
            both = (into[at] != 0) & (other[at] != 0)
            into[at] = both
            few += both
        total += few
    return total


def at_least(column, least):
    if not (_is(column, cnp.NPY_DOUBLE, -1) and _size(column) <= COMPARE_LIMIT and type(least) in (int, float)):
        return reference.at_least(column, least)
    cdef Py_ssize_t at, size = _size(column)
    cdef double bound = least
    found = _new(size, cnp.NPY_BOOL)
    cdef const double *given = <const double *> _of(column)
    cdef uint8_t *into = <uint8_t *> _of(found)
    for at in range(size):
        into[at] = given[at] >= bound
    return found


def below(column, limit):
    if not (_is(column, cnp.NPY_INT32, -1) and _size(column) <= COMPARE_LIMIT and type(limit) in (int, float)):
        return reference.below(column, limit)
    cdef Py_ssize_t at, size = _size(column)
    cdef double bound = limit
    found = _new(size, cnp.NPY_BOOL)
    cdef const int32_t *given = <const int32_t *> _of(column)
    cdef uint8_t *into = <uint8_t *> _of(found)
    for at in range(size):
        into[at] = given[at] < bound
    return found


def equal(column, number):
    if not (_is(column, cnp.NPY_INT64, -1) and _size(column) <= COMPARE_LIMIT and type(number) is int):
        return reference.equal(column, number)
    cdef Py_ssize_t at, size = _size(column)
    cdef int64_t wanted = number
    found = _new(size, cnp.NPY_BOOL)
    cdef const int64_t *given = <const int64_t *> _of(column)
    cdef uint8_t *into = <uint8_t *> _of(found)
    for at in range(size):
        into[at] = given[at] == wanted
    return found


def extremes(raw, left, least):
    cdef double low, high
    if not (_is(raw, cnp.NPY_DOUBLE, -1) and 0 < _size(raw) <= COMPARE_LIMIT and _is(left, cnp.NPY_BOOL, _size(raw))):
        return reference.extremes(raw, left, least)
    if not _extremes(<const double *> _of(raw), <const uint8_t *> _of(left), _size(raw), &low, &high):
        return reference.extremes(raw, left, least)
    return (least if least is not None and low > <double> least else low), high


cdef bint _extremes(const double *given, const uint8_t *there, Py_ssize_t size, double *low, double *high) noexcept nogil:
    """Whether all of them are numbers. Several lanes, so that none waits for the one before."""
    cdef double[2] top, bottom  # those that are not left are as good as none
    cdef double low0 = INFINITY, low1 = INFINITY, low2 = INFINITY, low3 = INFINITY
    cdef double high0 = -INFINITY, high1 = -INFINITY, high2 = -INFINITY, high3 = -INFINITY
    cdef Py_ssize_t at = 0, whole = size - size % 4
    cdef int64_t none = 0
    top[0], top[1], bottom[0], bottom[1] = -INFINITY, INFINITY, INFINITY, -INFINITY
    while at < whole:
        low0 = _lower(_higher(given[at], bottom[there[at] != 0]), low0)
        high0 = _higher(_lower(given[at], top[there[at] != 0]), high0)
        low1 = _lower(_higher(given[at + 1], bottom[there[at + 1] != 0]), low1)
        high1 = _higher(_lower(given[at + 1], top[there[at + 1] != 0]), high1)
        low2 = _lower(_higher(given[at + 2], bottom[there[at + 2] != 0]), low2)
        high2 = _higher(_lower(given[at + 2], top[there[at + 2] != 0]), high2)
        low3 = _lower(_higher(given[at + 3], bottom[there[at + 3] != 0]), low3)
        high3 = _higher(_lower(given[at + 3], top[there[at + 3] != 0]), high3)
        at += 4
    for at in range(whole, size):
        if there[at]:
            low0, high0 = _lower(given[at], low0), _higher(given[at], high0)
    low[0] = _lower(_lower(low0, low1), _lower(low2, low3))
    high[0] = _higher(_higher(high0, high1), _higher(high2, high3))
    for at in range(size):
        none |= <int64_t> (given[at] != given[at])
    return not none


cdef inline double _lower(double one, double other) noexcept nogil:
    return one if one < other else other


cdef inline double _higher(double one, double other) noexcept nogil:
    return one if one > other else other


def add_scaled(total, raw, double low, factor):
    if not (_is(raw, cnp.NPY_DOUBLE, -1) and isinstance(factor, float)):
        return reference.add_scaled(total, raw, low, factor)
    cdef Py_ssize_t at, size = _size(raw)
    cdef double times = factor
    cdef const double *given = <const double *> _of(raw)
    cdef double *into
    if total is None:
        total = _new(size, cnp.NPY_DOUBLE)
        into = <double *> _of(total)
        for at in range(size):
            into[at] = (given[at] - low) * times
        return total
    if not (_is(total, cnp.NPY_DOUBLE, size) and cnp.PyArray_ISWRITEABLE(total)):
        return reference.add_scaled(total, raw, low, factor)
    into = <double *> _of(total)
    for at in range(size):
        into[at] += (given[at] - low) * times
    return total


def ordered(rows, scores, Py_ssize_t count):
    if not (0 < count <= INSERTION_SORT_LIMIT and _is(scores, cnp.NPY_DOUBLE, -1) and _is(rows, cnp.NPY_INT64, _size(scores))):
        return reference.ordered(rows, scores, count)
    found = _ordered(<const int64_t *> _of(rows), <const double *> _of(scores), _size(rows), NULL, 0, 0, count)
    return reference.ordered(rows, scores, count) if found is None else found


def ordered_in(rows, scores, cells, number, Py_ssize_t count):
    if not (
        0 < count <= INSERTION_SORT_LIMIT
        and _is(scores, cnp.NPY_DOUBLE, -1)
        and _is(rows, cnp.NPY_INT64, _size(scores))
        and _is(cells, cnp.NPY_INT64, -1)
    ):
        return reference.ordered_in(rows, scores, cells, number, count)
    found = _ordered(
        <const int64_t *> _of(rows),
        <const double *> _of(scores),
        _size(rows),
        <const int64_t *> _of(cells),
        _size(cells),
        number,
        count,
    )
    return reference.ordered_in(rows, scores, cells, number, count) if found is None else found


cdef object _ordered(
    const int64_t *rows,
    const double *scores,
    Py_ssize_t size,
    const int64_t *cells,
    Py_ssize_t end,
    int64_t cell,
    Py_ssize_t count,
):
    """The best rows with their scores, of one cell (``cells`` NULL: of all); None: something in them is for the reference."""
    cdef double[INSERTION_SORT_LIMIT] best
    cdef int64_t[INSERTION_SORT_LIMIT] chosen
    cdef Py_ssize_t at, to, held = 0
    cdef double score
    for at in range(size):
        if cells != NULL:
            if not 0 <= rows[at] < end:
                return None
            if cells[rows[at]] != cell:
                continue
        score = scores[at]
        if score != score:
            return None
        if held < count:
            held += 1
        elif score <= best[held - 1]:
            continue
        to = held - 1
        while to and best[to - 1] < score:
            best[to], chosen[to] = best[to - 1], chosen[to - 1]
            to -= 1
        best[to], chosen[to] = score, rows[at]
    found, theirs = _new(held, cnp.NPY_INT64), _new(held, cnp.NPY_DOUBLE)
    cdef int64_t *into = <int64_t *> _of(found)
    cdef double *beside = <double *> _of(theirs)
    for at in range(held):
        into[at], beside[at] = chosen[at], best[at]
    return found, theirs

# cython: language_level=3, boundscheck=False, wraparound=False
"""``in_order`` and ``noise`` as one pass each, of a compiled wheel. What they mean, and the reference: ranking.py and arrays.py."""

from libc.stdint cimport int64_t, uint64_t

import numpy as np

from scheduler.arrays import mixed
from scheduler.ranking import in_order as _in_order

cdef Py_ssize_t FEW = 64  # more than that are put in order by NumPy's sort


def noise(const uint64_t[:] salts, object seed, double below):
    cdef Py_ssize_t at, size = salts.shape[0]
    cdef uint64_t word = mixed(seed)
    cdef double unit = below * 2.0 ** -53
    found = np.empty(size)
    cdef double[:] into = found
    for at in range(size):
        into[at] = <double> <int64_t> (((salts[at] ^ word) * <uint64_t> 0xBF58476D1CE4E5B9) >> 11) * unit
    return found


def in_order(scores, Py_ssize_t count):
    if count > FEW:
        return _in_order(scores, count)
    cdef const double[:] given = scores
    cdef Py_ssize_t at, to, held = 0, size = given.shape[0]
    cdef Py_ssize_t wanted = min(count, size)
    found = np.empty(wanted, np.int64)
    if not wanted:
        return found
    cdef int64_t[:] best = found
    for at in range(size):
        if held < wanted:
            held += 1
        elif given[at] <= given[best[held - 1]]:
            continue
        to = held - 1
        while to and given[best[to - 1]] < given[at]:
            best[to] = best[to - 1]
            to -= 1
        best[to] = at
    return found

"""The host table: one column per attribute, one row per node of every cell.

It is memory only, without input or output. What is not true of a host but of a request belongs in ``scheduler/framework``.
"""

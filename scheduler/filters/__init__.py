"""Filters: each says for all hosts at once which may take the request, and why others may not.

One file has filters of one subject. They import ``scheduler/framework``, and nothing else of the scheduler.
"""

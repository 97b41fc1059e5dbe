"""Benchmarks: scripts to run by hand, each with a short form for the check.

A figure in the docs names the script that measured it. What several scripts share begins with an underscore.
"""

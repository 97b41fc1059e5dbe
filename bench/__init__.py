"""Benchmarks: scripts to be run by hand, each with a short form for the check."""

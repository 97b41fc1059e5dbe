"""Owns a boot from accepted to running: the super conductor at the API level, the cell conductor in every cell.

Each step of a boot and each sweep is one file, and ``main.py`` puts them together. They form one line of calls, so they stand
in one folder.
"""

"""Owns a boot from accepted to running: the super conductor at the API level, the cell conductor in every cell."""

"""Operator commands and the all-in-one. Each command is a class of cliff, named in the table of ``cli/app.py``."""

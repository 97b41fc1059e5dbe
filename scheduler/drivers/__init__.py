"""Drivers: which hosts are considered, how they are ranked, and what is said where none is found."""

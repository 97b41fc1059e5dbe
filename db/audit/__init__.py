"""Reads that compare what both levels have recorded: pages of keys and their rows. Nothing is locked."""

"""Frozen data and errors that all packages share. Nothing here does input or output."""

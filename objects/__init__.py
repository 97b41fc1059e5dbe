"""Frozen data and errors that every room shares. Nothing here does input or output."""

"""Weighers: each returns a column of raw weights. The engine scales the columns to one range and adds them up."""

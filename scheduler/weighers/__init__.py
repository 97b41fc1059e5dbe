"""Weighers: each answers a column of raw weights; the engine scales them to one range and adds them up."""

"""Decisions that claim nothing: dry runs, replays of stored decisions, lost hosts, and moves that would free the most."""

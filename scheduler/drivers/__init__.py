"""Drivers: decide which hosts are considered, how they are ranked, and what a refusal says."""

"""Rows of operators: cells, hosts, aggregates, and which cells do not answer."""

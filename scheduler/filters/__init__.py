"""Filters: each answers which hosts may take the request, for all hosts at once, and in one sentence why others may not."""

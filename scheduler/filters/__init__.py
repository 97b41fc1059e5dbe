"""Filters: each says for all hosts at once which may take the request, and gives the reason why others may not."""

"""Choose hosts for one batch: filter, weigh, choose, take, repeat.

``engine.py`` is the loop and ``survey.py`` one pass over the fleet; ``survey_cache.py`` and ``request_classes.py`` keep passes
for requests alike. It is pure arithmetic over the host table.
"""

"""Plan placements for requests: candidates, choice, alternates, explanation. Arithmetic on the host table, no I/O."""

"""Real processes under load and under faults, and the verdict on what became of every accepted request (docs/chaos.md)."""

"""The lab: replays traces of servers through the scheduler's own decisions, in virtual time and without a deployment."""

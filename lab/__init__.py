"""The lab: replays traces of servers through the scheduler's own decisions, in virtual time and without a deployment.

Readers of trace formats and of fleets are here, and so are the reports. Commands are in ``cli/lab``.
"""

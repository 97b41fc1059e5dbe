"""Defaults of options that several roles must agree on: the group [DEFAULT] has them once (``service/opts.py``)."""

from __future__ import annotations

SERVICE_DOWN_TIME_S = 60.0
IDLE_INTERVAL_S = 20.0
AVAILABILITY_ZONE = "nova"

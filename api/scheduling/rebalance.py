"""``GET /superconductor/rebalance``: which moves would free the most. Our own extension of the Compute API."""

from __future__ import annotations

import falcon

from api.http import call as calls
from api.http.call import send_json
from api.lookup.scheduler_queries import SchedulerAsker
from api.servers.accept import Acceptor
from objects import errors, text
from objects.spec import RequestSpec
from rpc.scheduler import FLAVORS_LIMIT

PARAMETERS = {"at_most": 1, "flavor": FLAVORS_LIMIT}
"""The parameters of the query, and how often each may be given."""
AT_MOST_DEFAULT = 5.0
"""Per cent of the servers."""


class RebalanceDryRun:
    """Asks a scheduler for the moves. Nothing is moved."""

    def __init__(self, acceptor: Acceptor, schedulers: SchedulerAsker) -> None:
        self._acceptor = acceptor
        self._schedulers = schedulers

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        call = calls.get_call(req)
        for name in req.params:
            if name not in PARAMETERS:
                raise errors.Invalid(f"{name[:80]}: is no parameter here; there are {', '.join(PARAMETERS)}")
            values = req.get_param_as_list(name) or []
            if len(values) > PARAMETERS[name] or not all(value and text.is_safe(value) for value in values):
                raise errors.Invalid(f"{name}: is given more than {PARAMETERS[name]} times, is empty or has a control character")
        context = call.context
        specs = [
            RequestSpec(
                batch_id=context.request_id.removeprefix("req-"),
                request_id=context.request_id,
                project_id=context.project_id,
                user_id=context.user_id,
                name="rebalance",
                flavor=self._acceptor.find_flavor(call, flavor, "flavor"),
            )
            for flavor in req.get_param_as_list("flavor") or []
        ]
        send_json(resp, {"rebalance": self._schedulers.plan_rebalance(call, specs, _per_cent(req.get_param("at_most")))})


def _per_cent(parameter: str | None) -> float:
    """Raises errors.Invalid for what is not above 0 and at most 100."""
    if parameter is None:
        return AT_MOST_DEFAULT
    try:
        number = float(parameter)
    except ValueError:
        number = 0.0
    if not 0 < number <= 100:
        raise errors.Invalid(f"at_most: {parameter[:40]!r} is not a number above 0 and up to 100")
    return number

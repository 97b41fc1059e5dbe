"""Holds in the protocol model: requests that wait with their claims until a user boots them, or a sweep lets their hold expire.

Whoever deletes the hold's row decides. A conductor parks a request, in one transaction, only while that row is there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.model_search import ENVIRONMENT, PROTOCOL, Label
from tests.faults.protocol_model import Conductor, Model, State, put

Step = tuple[Label, int, State]
"""What happens, what it costs, and the state after it."""


def steps(model: Model, s: State) -> Iterator[Step]:
    for r, hold in enumerate(s.hold):
        if hold != "open":
            continue
        yield ("user boots the hold", r), ENVIRONMENT, booted(s, r)
        if not model.split:
            yield ("hold expires", r), PROTOCOL, expired(model, s, r)
        elif ("expire", r) not in s.bag:
            yield ("sweep reads the hold", r), PROTOCOL, model.send(s, ("expire", r))


def booted(s: State, r: int) -> State:
    """The transaction of a user: the hold's row is deleted, and a held request is queued."""
    request = s.br[r]
    br = put(s.br, r, ("queued", request[1])) if request is not None and request[0] == "held" else s.br
    return s._replace(hold=put(s.hold, r, "booted"), br=br)


def expired(model: Model, s: State, r: int) -> State:
    """The transaction of the sweep, some time after it read the hold: row, request and claim are deleted, the server with them."""
    if s.hold[r] != "open" and model.on("hold-once"):
        return s
    s = s._replace(hold=put(s.hold, r, "expired" if s.hold[r] == "open" else "both"))
    if s.br[r] is None:  # its user deleted it before, or it ended in cell0
        return s
    deleted = s.mapping[r]._replace(deleted=True)
    return s._replace(br=put(s.br, r, None), claim=put(s.claim, r, None), mapping=put(s.mapping, r, deleted))


def parking(model: Model, s: State, con: Conductor) -> Step:
    """The conductor's transaction after the claim: the request is held, under a new fence, or built if its hold was booted."""
    r, f = con.request, con.fence
    if s.br[r] == ("leased", f) and (s.hold[r] == "open" or not model.on("hold-row")):
        return ("park", r, f), PROTOCOL, model.con_swap(s._replace(br=put(s.br, r, ("held", f + 1))), con, None)
    return ("hold is gone", r, f), PROTOCOL, model.con_swap(s, con, con._replace(step="stage"))


def unsafe(s: State) -> str | None:
    """The safety invariant that this state breaks, if any."""
    for r, hold in enumerate(s.hold):
        if hold == "both":
            return "S11 a hold was booted and has expired"
        if hold == "open" and s.mapping[r].cell not in (None, "0"):
            return "S12 handed over to a cell while its hold is open"
        request = s.br[r]
        if request is not None and request[0] == "held" and s.claim[r] is None:
            return "S13 held without a claim"
    return None

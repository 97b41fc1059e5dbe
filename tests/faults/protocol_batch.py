"""All-or-nothing batches in the protocol model: who decides that one has failed, how it is rolled back, and what must hold of it.

A batch is open until it is settled (all its members that are not deleted are ACTIVE) or has failed (one of them is in ERROR). What
the API level knows of its members (``Mapping.told``) decides, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults.model_search import ENVIRONMENT, PROTOCOL, Label
from tests.faults.protocol_model import CELL0, Model, State

Step = tuple[Label, int, State]
"""What happens, what it costs, and the state after it."""


def steps(model: Model, s: State) -> Iterator[Step]:
    if not s.batch:
        return
    yield from sibling_steps(model, s)
    left = [told for told in known(s) if told != "deleted"]
    if s.batch == "open":
        verdict = "failed" if "error" in left else "settled" if set(left) <= {"active"} else None
        if verdict and not model.split:
            yield ("judge", verdict), PROTOCOL, judged(model, s, verdict)
        elif verdict and ("verdict", verdict) not in s.bag:
            yield ("judge reads", verdict), PROTOCOL, model.send(s, ("verdict", verdict))
    if s.batch == "failed" and set(left) <= {"error"}:
        yield ("rolled back",), PROTOCOL, s._replace(batch="rolled back")
    if s.batch in ("failed", "rolled back"):
        for r, mapping in enumerate(s.mapping):
            # read before a delete, or before the end of the roll-back, it may be written after it: so neither is asked for
            if mapping.cell not in (None, CELL0) and model.on("rollback-sweep"):
                yield ("roll-back reaches the cell", mapping.cell, r), PROTOCOL, model.roll_back(s, str(mapping.cell), r)


def known(s: State) -> list[str]:
    """What the API level knows of each member."""
    members = ["deleted" if mapping.deleted else mapping.told for mapping in s.mapping]
    return [*members, s.sibling] if s.sibling else members


def judged(model: Model, s: State, verdict: str) -> State:
    """The transaction that decides a batch, some time after what it follows from was read."""
    if s.batch != "open" and model.on("verdict-once"):
        return s
    return s._replace(batch=verdict)


def sibling_steps(model: Model, s: State) -> Iterator[Step]:
    """The member that is not among the requests does whatever a member may do."""
    if s.sibling == "building":
        for state in ("active", "error"):
            yield ("sibling", state), PROTOCOL, s._replace(sibling=state)
    if s.sibling == "active" and s.batch == "failed" and model.on("rollback-sweep"):
        yield ("sibling is rolled back",), PROTOCOL, s._replace(sibling="error")
    if s.sibling not in ("", "deleted") and model.deletes:
        yield ("user deletes the sibling",), ENVIRONMENT, s._replace(sibling="deleted")


def unsafe(s: State) -> str | None:
    """The safety invariant that this state breaks, if any."""
    if s.batch in ("open", "settled") and any(row is not None and row.undo for rows in s.rows for row in rows):
        return f"S10 rolled back, and its batch is {s.batch}"
    return None


def unfinished(model: Model, s: State) -> str | None:
    """The end invariant that this state breaks, if any."""
    if s.batch in ("open", "failed"):
        return f"E10 the batch is {s.batch} for ever"
    left = {told for told in known(s) if told != "deleted"}
    if len(left) > 1:
        return f"E11 half a batch: {sorted(left)}"
    for r, mapping in enumerate(s.mapping if s.batch else ()):
        row = model.row(s, mapping.cell, r) if mapping.cell else None
        if not mapping.deleted and row is not None and row.state.lower() != mapping.told:
            return f"E12 {row.state}, and the API level believes {mapping.told}"
    return None

"""A filter of one host at a time that is asked of the best hosts first gives the same answers as one that is asked of all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from objects.spec import RequestSpec
from scheduler.engine.survey import Survey
from scheduler.engine.surveying import survey
from scheduler.filters.adapter import Adapter
from scheduler.framework.hosts import HostState
from tests.support import fleet
from tests.support.examples import examples

HOSTS = st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=40)


class Chosen:
    """Lets these hosts pass."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        del spec
        return host.host in self._names


def surveyed(hosts: list[tuple[int, bool]]) -> Survey:
    table = fleet.table([fleet.node(f"h{n}", vcpus=vcpus) for n, (vcpus, _) in enumerate(hosts)])
    driver = fleet.driver()
    own = Chosen({f"h{n}" for n, (_, passes) in enumerate(hosts) if passes})
    driver.filters = (*driver.filters, Adapter(driver.filters[0].settings, "Chosen", own))
    return survey(table, driver, fleet.request(fleet.spec(fleet.flavor(vcpus=2)), table))


@given(HOSTS, st.integers(1, 12), st.integers(0, 1))
@examples(200)
def test_the_best_are_the_same(hosts: list[tuple[int, bool]], count: int, cell: int) -> None:
    asked, whole = surveyed(hosts), surveyed(hosts)
    whole.ask_all()
    for lazy, eager in (
        (asked.best_rows(count), whole.best_rows(count)),
        (asked.best_of_cell(cell, count), whole.best_of_cell(cell, count)),
    ):
        assert lazy[0].tolist() == eager[0].tolist()
        assert lazy[1].tolist() == eager[1].tolist()
    assert asked.passing_rows.tolist() == whole.passing_rows.tolist()
    assert asked.filter_counts == whole.filter_counts

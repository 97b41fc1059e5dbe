"""``docs/nova-scheduler.md`` against the code: what it calls honoured exists, what it calls refused is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from objects import errors, extra_specs
from scheduler import opts
from scheduler.engine.always import at_last
from scheduler.framework.settings import SchedulerSettings
from scheduler.plugins import FILTERS_NAMESPACE, WEIGHERS_NAMESPACE, registered_plugins
from tests.support import nova_table
from tests.support.nova_table import HONOURED, NOT_THERE, REFUSED

CHECKOUT = Path(os.environ.get("SUPERCONDUCTOR_CHECKOUT", Path(__file__).parents[3]))
TABLES = nova_table.tables((CHECKOUT / nova_table.DOCUMENT).read_text())
SPECS = [(name, row.here) for row in TABLES["Extra specs"] for name in row.names]


@pytest.mark.parametrize(("heading", "namespace"), [("Filters", FILTERS_NAMESPACE), ("Weighers", WEIGHERS_NAMESPACE)])
def test_honoured_filters_and_weighers_are_ours(heading: str, namespace: str) -> None:
    ours = {*registered_plugins(namespace), *(one.name for one in at_last(SchedulerSettings()) if heading == "Filters")}
    for row in TABLES[heading]:
        if row.here == HONOURED:
            assert ours >= set(row.instead or row.names)
        else:
            assert ours.isdisjoint(row.names)


def test_honoured_options_are_ours() -> None:
    ours = {option.name for option in (*opts.OPTIONS, opts.WORKERS)}
    for row in TABLES["Options"]:
        if row.here == HONOURED:
            elsewhere = {"[api] max_attempts", "[conductor] map_hosts", "superconductor host discover"}
            assert ours | registered_plugins(FILTERS_NAMESPACE).keys() | elsewhere >= set(row.instead or row.names)
        elif row.here == NOT_THERE:
            assert ours.isdisjoint(row.names)


@pytest.mark.parametrize(("name", "here"), SPECS)
def test_refused_extra_specs_are_refused_and_no_others(name: str, here: str) -> None:
    key = name.replace("*", "X")
    given = {key: "required" if key.startswith("trait") else "1"}
    if here == REFUSED:
        with pytest.raises(errors.Invalid):
            extra_specs.check_specs(given)
    else:
        extra_specs.check_specs(given)


def test_every_unsupported_extra_spec_is_listed() -> None:
    for name in extra_specs.NOT_OFFERED:
        row = nova_table.find(TABLES["Extra specs"], f"{name}X" if name.endswith(":") else name)
        assert row is not None
        assert row.here == REFUSED

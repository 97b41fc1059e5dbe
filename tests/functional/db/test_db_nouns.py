"""What operators define, in the API database: kept as given, unique by name, and told to those who cache it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from db.api.claims import server_groups
from db.api.deployment import aggregates, cell_mappings, host_mappings
from db.api.projects import flavors
from db.api.rows import epochs
from db.api.rows.epochs import Epoch
from db.api.rows.tables import instance_mappings
from db.sql.engine import Database
from objects import errors
from objects.cell import CellMapping, CellState, HostMapping
from objects.flavor import Flavor
from objects.group import GroupPolicy, ServerGroup
from tests.support.databases import database_fixture

SMALL = Flavor(
    flavor_id="1",
    name="m1.small",
    vcpus=1,
    memory_mb=2048,
    root_gb=20,
    ephemeral_gb=1,
    swap_mb=512,
    is_public=False,
    disabled=True,
    description="für Tests \N{CLOUD}",
    extra_specs={"hw:cpu_policy": "dedicated"},
)
CELL = CellMapping(uuid="c1", name="cell1", database_url="sqlite:////cell1.db", transport_url="embedded://cell1/")
GROUP = ServerGroup(uuid="g1", name="web", project_id="p", user_id="u", policy=GroupPolicy.ANTI_AFFINITY, max_server_per_host=2)


database = database_fixture(scope="function")


@contextmanager
def epoch_rises(database: Database, name: Epoch, *, by: bool = True) -> Iterator[None]:
    before = database.read(epochs.read)
    yield
    after = database.read(epochs.read)
    assert {kind for kind in after if after[kind] > before[kind]} == ({name} if by else set())


def refuses(error: type[Exception], text: str, call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(error) as caught:
        call(*arguments)
    assert str(caught.value) == text


# -- epochs ----------------------------------------------------------------------------------------------------------------


def test_a_new_kinds_epoch_appears_with_its_bump(database: Database) -> None:
    database.write(epochs.bump_epoch, "images")
    database.write(epochs.bump_epoch, "images")

    assert database.read(epochs.read)["images"] == 2


# -- flavors ---------------------------------------------------------------------------------------------------------------


def test_flavor_comes_back_as_it_was_given(database: Database) -> None:
    with epoch_rises(database, Epoch.FLAVORS):
        database.write(flavors.create, SMALL)

    assert database.read(flavors.get, "1") == SMALL
    assert database.read(flavors.list_all) == [SMALL]


def test_flavor_is_found_by_id_before_name(database: Database) -> None:
    confusing = msgspec.structs.replace(SMALL, flavor_id="m1.small", name="other")
    database.write(flavors.create, SMALL)
    assert database.read(flavors.find_flavor, "m1.small") == SMALL
    database.write(flavors.create, confusing)

    assert database.read(flavors.find_flavor, "m1.small") == confusing
    refuses(errors.NotFound, "Flavor 'm1.large' not found", database.read, flavors.find_flavor, "m1.large")


@pytest.mark.parametrize("other", [{"flavor_id": "2"}, {"name": "m1.other"}])
def test_flavor_id_and_name_are_unique(database: Database, other: dict[str, str]) -> None:
    database.write(flavors.create, SMALL)
    second = msgspec.structs.replace(SMALL, **other)

    with epoch_rises(database, Epoch.FLAVORS, by=False):
        refuses(
            errors.Conflict,
            f"Flavor '{second.name}' ({second.flavor_id}) already exists",
            database.write,
            flavors.create,
            second,
        )


def test_flavor_changes_and_goes(database: Database) -> None:
    database.write(flavors.create, SMALL)
    bigger = msgspec.structs.replace(SMALL, vcpus=2, name="m1.medium", extra_specs={})
    with epoch_rises(database, Epoch.FLAVORS):
        assert database.write(flavors.change_flavor, "1", lambda found: bigger) == bigger
    assert database.read(flavors.get, "1") == bigger
    database.write(flavors.change_flavor, "1", lambda found: found)  # the same again is no error
    database.write(flavors.grant_access, "1", "p1")

    with epoch_rises(database, Epoch.FLAVORS):
        database.write(flavors.delete, "1")
    refuses(errors.NotFound, "Flavor '1' not found", database.read, flavors.get, "1")
    refuses(errors.NotFound, "Flavor '1' not found", database.write, flavors.delete, "1")
    refuses(errors.NotFound, "Flavor '1' not found", database.write, flavors.change_flavor, "1", lambda found: found)
    database.write(flavors.create, SMALL)
    assert database.read(flavors.list_projects, "1") == [], "nobody keeps access to a deleted flavor"


def test_flavor_is_given_to_projects_and_taken_away(database: Database) -> None:
    database.write(flavors.create, SMALL)
    for project in ("p2", "p1"):
        with epoch_rises(database, Epoch.FLAVORS):
            database.write(flavors.grant_access, "1", project)
    assert database.read(flavors.list_projects, "1") == ["p1", "p2"]
    assert database.read(flavors.projects_of_all) == {"1": {"p1", "p2"}}
    with epoch_rises(database, Epoch.FLAVORS):
        database.write(flavors.revoke_access, "1", "p2")
    assert database.read(flavors.list_projects, "1") == ["p1"]
    already = "Flavor access already exists for flavor 1 and project p1 combination."
    refuses(errors.Conflict, already, database.write, flavors.grant_access, "1", "p1")
    gone = "Flavor access not found for 1 / p2 combination."
    refuses(errors.NotFound, gone, database.write, flavors.revoke_access, "1", "p2")
    refuses(errors.NotFound, "Flavor '9' not found", database.write, flavors.grant_access, "9", "p1")


# -- cells and hosts -------------------------------------------------------------------------------------------------------


def test_cell_mapping_returns_and_changes_raise_its_epoch(database: Database) -> None:
    with epoch_rises(database, Epoch.CELLS):
        database.write(cell_mappings.create, CELL)
    assert database.read(cell_mappings.get, "c1") == CELL

    draining = msgspec.structs.replace(CELL, state=CellState.DRAINING, name="cell-one")
    with epoch_rises(database, Epoch.CELLS):
        database.write(cell_mappings.update_mapping, draining)
    assert database.read(cell_mappings.list_all) == [msgspec.structs.replace(draining, epoch=1)]


def test_cell_name_is_unique(database: Database) -> None:
    database.write(cell_mappings.create, CELL)
    second = msgspec.structs.replace(CELL, uuid="c2")
    refuses(errors.Conflict, "Cell 'cell1' already exists", database.write, cell_mappings.create, second)

    other = msgspec.structs.replace(CELL, uuid="c2", name="cell2")
    database.write(cell_mappings.create, other)
    renamed = msgspec.structs.replace(other, name="cell1")
    text = "Cell 'cell1' cannot be changed: the new name is taken"
    refuses(errors.Conflict, text, database.write, cell_mappings.update_mapping, renamed)


def test_cell_goes_only_when_it_is_empty(database: Database) -> None:
    database.write(cell_mappings.create, CELL)
    database.write(host_mappings.add_mappings, [HostMapping(host="h1", cell_uuid="c1")], 1.0)
    text = "Cell 'cell1' still has 1 hosts: delete them, or give --with-hosts"
    refuses(errors.Conflict, text, database.write, cell_mappings.delete, "c1")
    database.write(host_mappings.delete, "h1")

    server = {"instance_uuid": "i", "batch_id": "b", "cell_uuid": "c1", "project_id": "p", "user_id": "u", "name": "n"}
    times = {"created_at": 1.0, "updated_at": 1.0, "state": "active"}
    database.write(lambda tx: tx.execute(sa.insert(instance_mappings), server | times))
    refuses(errors.Conflict, "Cell 'cell1' still has 1 servers: delete them first", database.write, cell_mappings.delete, "c1")
    database.write(lambda tx: tx.execute(sa.update(instance_mappings).values(deleted=True)))
    unconfirmed = "Cell 'cell1' has not confirmed 1 deletes yet: wait until their guests are gone"
    refuses(errors.Conflict, unconfirmed, database.write, cell_mappings.delete, "c1")
    database.write(lambda tx: tx.execute(sa.update(instance_mappings).values(state="deleted")))

    with epoch_rises(database, Epoch.CELLS):
        database.write(cell_mappings.delete, "c1")
    refuses(errors.NotFound, "Cell 'c1' not found", database.write, cell_mappings.delete, "c1")


def test_hosts_are_mapped_once(database: Database) -> None:
    mine = [HostMapping(host=f"h{n}", cell_uuid="c1") for n in (2, 1)]
    with epoch_rises(database, Epoch.HOSTS):
        assert database.write(host_mappings.add_mappings, mine, 1.0) == []
    with epoch_rises(database, Epoch.HOSTS, by=False):
        assert database.write(host_mappings.add_mappings, mine, 2.0) == []

    assert database.read(host_mappings.list_all) == sorted(mine, key=lambda m: m.host)


def test_host_of_another_cell_conflicts_others_are_mapped(database: Database) -> None:
    first = HostMapping(host="h1", cell_uuid="c1")
    database.write(host_mappings.add_mappings, [first], 1.0)
    other, new = HostMapping(host="h1", cell_uuid="c2"), HostMapping(host="h2", cell_uuid="c2")

    with epoch_rises(database, Epoch.HOSTS):
        assert database.write(host_mappings.add_mappings, [other, new], 2.0) == [first]

    assert database.read(host_mappings.list_all) == [first, new]


def test_many_hosts_are_mapped_at_once(database: Database) -> None:
    mappings = [HostMapping(host=f"host{n:04}", cell_uuid="c1") for n in range(1200)]
    database.write(host_mappings.add_mappings, mappings[:1], 1.0)

    assert (
        database.write(host_mappings.add_mappings, [msgspec.structs.replace(m, cell_uuid="c2") for m in mappings], 1.0)
        == mappings[:1]
    )
    assert len(database.read(host_mappings.list_all)) == 1200


def test_no_hosts_are_no_change(database: Database) -> None:
    with epoch_rises(database, Epoch.HOSTS, by=False):
        assert database.write(host_mappings.add_mappings, [], 1.0) == []


def test_unmapped_host_is_not_found(database: Database) -> None:
    refuses(errors.NotFound, "Host 'h1' not found", database.write, host_mappings.delete, "h1")


# -- aggregates ------------------------------------------------------------------------------------------------------------


def test_aggregate_gathers_hosts_and_metadata(database: Database) -> None:
    with epoch_rises(database, Epoch.AGGREGATES):
        made = database.write(aggregates.create, "ssd", {"ssd": "true"})
    for host in ("h2", "h1"):
        with epoch_rises(database, Epoch.AGGREGATES):
            database.write(aggregates.add_host, made.id, host)
    with epoch_rises(database, Epoch.AGGREGATES):
        database.write(aggregates.set_metadata, made.id, {"availability_zone": "az1", "ssd": None})

    found = database.read(aggregates.get, made.id)
    expected = msgspec.structs.replace(made, hosts=("h1", "h2"), metadata={"availability_zone": "az1"}, updated_at=found.updated_at)
    assert found == expected
    assert (found.updated_at or 0.0) >= made.created_at > 0.0
    assert database.read(aggregates.find_by_name, "ssd") == expected
    assert database.read(aggregates.list_all) == [expected]


def test_a_host_is_in_one_rack(database: Database) -> None:
    first = database.write(aggregates.create, "row 1", {"rack": "r1"})
    second = database.write(aggregates.create, "row 2", {"rack": "r2"})
    database.write(aggregates.add_host, first.id, "h1")
    text = "Host 'h1' is in rack 'r1' already, through aggregate 'row 1'"
    refuses(errors.Conflict, text, database.write, aggregates.add_host, second.id, "h1")
    database.write(aggregates.set_metadata, second.id, {"rack": None})
    database.write(aggregates.add_host, second.id, "h1")
    refuses(errors.Conflict, text, database.write, aggregates.set_metadata, second.id, {"rack": "r2"})
    database.write(aggregates.set_metadata, second.id, {"rack": "r1", "ssd": "true"})
    assert database.read(aggregates.get, second.id).rack_name == "r1"


def test_aggregate_name_is_unique(database: Database) -> None:
    database.write(aggregates.create, "ssd")
    other = database.write(aggregates.create, "hdd")

    refuses(errors.Conflict, "Aggregate 'ssd' already exists", database.write, aggregates.create, "ssd")
    text = f"Aggregate '{other.id}' cannot be changed: the new name is taken"
    refuses(errors.Conflict, text, database.write, aggregates.rename_aggregate, other.id, "ssd")
    with epoch_rises(database, Epoch.AGGREGATES):
        database.write(aggregates.rename_aggregate, other.id, "tape")


def test_host_joins_an_aggregate_once_and_leaves_it(database: Database) -> None:
    made = database.write(aggregates.create, "ssd")
    database.write(aggregates.add_host, made.id, "h1")
    refuses(errors.Conflict, "Host 'h1' is in aggregate 'ssd' already", database.write, aggregates.add_host, made.id, "h1")
    refuses(errors.Conflict, "Aggregate 'ssd' still has 1 hosts", database.write, aggregates.delete, made.id)

    with epoch_rises(database, Epoch.AGGREGATES):
        database.write(aggregates.remove_host, made.id, "h1")
    text = "Host 'h1' in aggregate 'ssd' not found"
    refuses(errors.NotFound, text, database.write, aggregates.remove_host, made.id, "h1")
    with epoch_rises(database, Epoch.AGGREGATES):
        database.write(aggregates.delete, made.id)
    for call, *rest in (
        (aggregates.delete,),
        (aggregates.add_host, "h"),
        (aggregates.set_metadata, {}),
        (aggregates.rename_aggregate, "n"),
    ):
        refuses(errors.NotFound, f"Aggregate '{made.id}' not found", database.write, call, made.id, *rest)


def test_names_of_hosts_are_compared_exactly(database: Database) -> None:
    """Whatever collation the server has by default."""
    hosts = ["node-1", "knot\N{LATIN SMALL LETTER E WITH ACUTE}", "node-1 x"]
    database.write(host_mappings.add_mappings, [HostMapping(host=host, cell_uuid="c1") for host in hosts], 0.0)
    made = database.write(aggregates.create, "ssd")
    for other in ("NODE-1", "knot\N{LATIN CAPITAL LETTER E WITH ACUTE}", "Node-1 X"):
        assert not database.read(host_mappings.is_known, other, None)
        with pytest.raises(errors.NotFound, match="could not be found; there is"):
            database.write(aggregates.add_host, made.id, other)
    for other in ("knote", "knote\N{COMBINING ACUTE ACCENT}", "node-1 ", "node-2"):
        assert not database.read(host_mappings.is_known, other, None)
        database.write(aggregates.add_host, made.id, other)  # as of a host that does not report yet
    for host in hosts:
        database.write(aggregates.add_host, made.id, host)


def test_names_that_differ_in_case_are_two(database: Database) -> None:
    for name in ("ssd", "SSD", "ssd ", "s\N{LATIN SMALL LETTER SHARP S}d", "sssd"):
        made = database.write(aggregates.create, name)
        assert database.read(aggregates.find_by_name, name).id == made.id
    for flavor_id in ("m1", "M1", "m1.", "\N{LATIN SMALL LETTER E WITH ACUTE}", "e\N{COMBINING ACUTE ACCENT}"):
        database.write(flavors.create, Flavor(flavor_id=flavor_id, name=flavor_id, vcpus=1, memory_mb=1))
        assert database.read(flavors.get, flavor_id).name == flavor_id


def test_host_is_in_one_zone_at_most(database: Database) -> None:
    first = database.write(aggregates.create, "rack1", {"availability_zone": "az1"})
    same = database.write(aggregates.create, "rack1-ssd", {"availability_zone": "az1"})
    other = database.write(aggregates.create, "rack2", {"availability_zone": "az2"})
    none = database.write(aggregates.create, "gpu")
    for aggregate in (first, same, none):
        database.write(aggregates.add_host, aggregate.id, "h1")

    text = "Host 'h1' is in zone 'az1' already, through aggregate 'rack1'"
    refuses(errors.Conflict, text, database.write, aggregates.add_host, other.id, "h1")
    refuses(errors.Conflict, text, database.write, aggregates.set_metadata, none.id, {"availability_zone": "az3"})
    database.write(aggregates.set_metadata, none.id, {"availability_zone": "az1"})


# -- server groups ---------------------------------------------------------------------------------------------------------


def test_server_group_comes_back_as_it_was_given(database: Database) -> None:
    with epoch_rises(database, Epoch.GROUPS):
        database.write(server_groups.create, GROUP)

    assert database.read(server_groups.list_all) == [GROUP]
    assert database.read(server_groups.list_all, "other") == []


def test_server_groups_may_share_names_but_not_uuids(database: Database) -> None:
    database.write(server_groups.create, GROUP)
    text = "Server group 'g1' already exists"
    refuses(errors.Conflict, text, database.write, server_groups.create, msgspec.structs.replace(GROUP, name="other"))
    database.write(server_groups.create, msgspec.structs.replace(GROUP, uuid="g2"))
    assert [group.uuid for group in database.read(server_groups.list_page, GROUP.project_id, 9)] == ["g1", "g2"]


def test_server_group_is_renamed_but_keeps_its_policy(database: Database) -> None:
    database.write(server_groups.create, GROUP)
    with epoch_rises(database, Epoch.GROUPS):
        database.write(server_groups.rename_group, msgspec.structs.replace(GROUP, name="www", policy=GroupPolicy.AFFINITY))
    assert database.read(server_groups.list_all) == [msgspec.structs.replace(GROUP, name="www")]

    with epoch_rises(database, Epoch.GROUPS):
        database.write(server_groups.delete, "g1")
    assert database.read(server_groups.list_all) == []
    refuses(errors.NotFound, "Server group 'g1' not found", database.write, server_groups.delete, "g1")

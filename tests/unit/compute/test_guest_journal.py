"""The file of a host's guests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute.driver import Guest
from compute.journal import Journal, read_entries, read_guests
from objects import errors


def a_guest(uuid: str, attempt: int = 1) -> Guest:
    return Guest(uuid=uuid, name="", node="n", fence=1, attempt=attempt, builder="h:a", vcpus=1, memory_mb=1, disk_gb=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "h.guests"


def test_a_missing_file_has_no_guests(path: Path) -> None:
    assert read_guests(path) == []


def test_every_change_is_in_the_file_at_once(path: Path) -> None:
    journal = Journal(path)
    journal.add_guest(a_guest("a"))
    assert read_guests(path) == [a_guest("a")]
    journal.add_guest(a_guest("b"))
    journal.remove_guest("a")
    assert read_guests(path) == [a_guest("b")]


def test_a_doubled_guest_is_destroyed_as_one(path: Path) -> None:
    journal = Journal(path)
    journal.add_guest(a_guest("a", 1))
    journal.add_guest(a_guest("a", 2))
    assert [guest.attempt for guest in read_guests(path)] == [1, 2]
    journal.remove_guest("a")
    assert read_guests(path) == []


def test_removing_what_is_not_there_writes_nothing(path: Path) -> None:
    Journal(path).remove_guest("a")
    assert path.read_bytes() == b""


def test_a_torn_last_line_never_happened(path: Path) -> None:
    journal = Journal(path)
    journal.add_guest(a_guest("a"))
    journal.add_guest(a_guest("b"))
    journal.close()
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert read_guests(path) == [a_guest("a")], end
    again = Journal(path)
    again.add_guest(a_guest("c"))
    assert read_guests(path) == [a_guest("a"), a_guest("c")]


def test_damage_elsewhere_is_refused_by_line(path: Path) -> None:
    journal = Journal(path)
    journal.add_guest(a_guest("a"))
    path.write_bytes(path.read_bytes() + b'{"spawned": 7}\n{"destroyed": "a"}\n')
    with pytest.raises(errors.Misconfigured, match="line 2"):
        read_guests(path)


def test_opening_forgets_the_past(path: Path) -> None:
    journal = Journal(path)
    for n in range(10):
        journal.add_guest(a_guest(f"u{n}"))
        journal.remove_guest(f"u{n}")
    journal.add_guest(a_guest("kept"))
    journal.close()
    assert len(read_entries(path)) == 21
    Journal(path).close()
    assert [entry.spawned for entry in read_entries(path)] == [a_guest("kept")]


def test_death_during_compaction_leaves_the_old_file(path: Path) -> None:
    journal = Journal(path)
    journal.add_guest(a_guest("a"))
    journal.close()
    path.with_name("h.guests.new").write_bytes(b'{"spawned": {"uu')
    assert Journal(path).list_guests() == [a_guest("a")]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"))))
def test_the_file_says_what_the_driver_says(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[bool, str]]) -> None:
    path = tmp_path_factory.mktemp("journal") / "h.guests"
    journal = Journal(path)
    for spawned, uuid in changes:
        if spawned:
            journal.add_guest(a_guest(uuid))
        else:
            journal.remove_guest(uuid)
    assert read_guests(path) == journal.list_guests()
    journal.close()
    reopened = Journal(path)
    assert reopened.list_guests() == journal.list_guests()
    reopened.close()

"""A restore destroys no guest and loses no server: every state of operations at the backup with every later event, age and loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.restored_operations import MENDED, Case, RestoredRegion, cases


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestoredRegion]:
    made = RestoredRegion(Path(tmp_path_factory.mktemp("restored")))
    yield made
    made.close()


@pytest.mark.one_in(40)
@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_no_restore_destroys_a_guest(region: RestoredRegion, case: Case) -> None:
    assert region.run(case) == []


@pytest.mark.parametrize("case", MENDED, ids=str)
def test_mended_cases_stay_mended(region: RestoredRegion, case: Case) -> None:
    assert region.run(case) == []

"""``docs/security.md`` says what a taken part can do and cannot: every sentence of it names the tests that show it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "security.md"

BORDER = "functional/rpc/test_broker_border.py"
CONDUCTOR = "functional/conductor/test_conductor_border.py"
SIZES = "functional/conductor/test_accepted_sizes.py"
FEED = "functional/conductor/test_feed_border.py"
SHOWN: dict[str, tuple[str, ...]] = {
    "It cannot report on another host": (
        f"{BORDER}::test_it_cannot_report_on_another_hosts_builds",
        f"{BORDER}::test_it_cannot_claim_other_hosts_live_or_stop",
        f"{BORDER}::test_it_cannot_say_what_another_host_offers",
        f"{CONDUCTOR}::test_a_hosts_user_naming_another_host_changes_nothing",
    ),
    "It cannot invent a host": (
        f"{BORDER}::test_it_cannot_invent_a_host",
        "functional/conductor/test_conductor_capacities.py::test_a_node_belongs_to_its_first_reporting_host",
    ),
    "It cannot act as its host from another machine": (
        "functional/conductor/test_two_machines_of_a_host.py::test_the_second_is_refused_and_both_are_named",
        "functional/compute/test_two_machines_one_name.py::test_the_second_takes_no_orders_and_says_why",
    ),
    "It cannot learn the builder": (f"{BORDER}::test_it_cannot_read_what_another_host_holds",),
    "It cannot get the user data or password": (f"{BORDER}::test_it_gets_no_secrets_of_builds_ordered_elsewhere",),
    "It cannot get them after the build or rebuild has begun": (
        "functional/conductor/test_secrets_delivery.py::test_another_start_gets_none_for_the_same_attempt",
        "functional/conductor/test_secrets_delivery.py::test_only_who_asks_whether_to_build_gets_them",
        "functional/compute/test_secrets_tasks.py::test_a_rebuild_begun_by_a_dead_agent_fails",
        "functional/compute/test_secrets_tasks.py::test_nobody_else_gets_them",
    ),
    "It cannot send orders to other hosts": (
        f"{BORDER}::test_the_broker_refuses_a_hosts_user",
        f"{BORDER}::test_what_agents_send_reaches_the_conductors_topic_only",
    ),
    "It cannot read, empty, delete or copy": (f"{BORDER}::test_the_broker_refuses_a_hosts_user",),
    "It cannot read answers to another agent": (
        f"{BORDER}::test_answers_to_another_agent_cannot_be_read",
        f"{BORDER}::test_an_answer_goes_to_nobody_but_who_asked",
    ),
    "It cannot answer what a conductor asks": (f"{BORDER}::test_it_answers_what_its_conductors_ask",),
    "It cannot speak in the name of another broker user": (f"{BORDER}::test_the_broker_refuses_a_hosts_user",),
    "It cannot choose the allocation ratios": (f"{SIZES}::test_they_are_those_of_the_configuration",),
    "It cannot offer more": (
        f"{SIZES}::test_growth_waits_for_an_operator_unlike_a_shrink",
        f"{SIZES}::test_it_does_not_creep",
        f"{CONDUCTOR}::test_a_host_claiming_more_is_refused_by_option",
        f"{CONDUCTOR}::test_many_nodes_offer_no_more_than_one",
    ),
    "It cannot have another host boot": (
        "functional/region/test_region_store.py::test_a_shelved_servers_changed_snapshot_is_refused",
        "functional/api/test_api_image_uploads.py::test_a_boot_says_what_its_image_must_be",
        "functional/api/test_api_image_uploads.py::test_a_task_says_what_its_image_must_be",
        "unit/images/test_image_cache.py::test_content_replaced_with_its_record_is_refused",
    ),
    "It cannot have another host open files": (
        "unit/compute/test_disk_copies.py::test_a_forged_disk_opens_no_host_file",
        "unit/compute/test_simulated_disks.py::test_a_link_on_another_host_is_not_followed",
        "unit/images/test_folder_store.py::test_a_snapshot_is_a_file_of_the_store",
        "unit/images/test_added_images.py::test_no_link_in_the_store_is_followed",
    ),
    "It **can** read all images": (),
    "It **can** delete or damage them": ("functional/conductor/test_drop_folders.py::test_what_hosts_make_is_moved_to_the_store",),
    "It **can** give the servers that leave it": (),
    "It **can** say anything of its own host": (f"{BORDER}::test_it_speaks_for_itself",),
    "It **can** load the broker": (),
    "Somebody with the shared user's": (f"{BORDER}::test_a_shared_user_represents_hosts_with_unstarted_work",),
    "He learns no builder": (f"{CONDUCTOR}::test_a_digest_begins_and_ends_no_build",),
    "A host that he invents gets no servers": (
        "functional/conductor/test_conductor_newcomers.py::test_hosts_of_a_shared_user_wait_for_command",
    ),
    "It cannot place its servers": (f"{FEED}::test_placing_on_another_cells_host_changes_nothing",),
    "It cannot change a server": (f"{FEED}::test_events_of_another_cells_instance_change_nothing",),
    "It cannot change what another cell's host offers": (
        f"{FEED}::test_stats_of_another_cells_host_change_nothing",
        f"{FEED}::test_a_host_that_another_cell_has_stays_there",
    ),
    "A repair claims nothing": (f"{FEED}::test_no_repair_claims_on_another_cells_host",),
    "It **can** say anything of its own hosts and servers": (
        "functional/conductor/test_conductor_newcomers.py::test_hosts_are_mapped_at_reports_and_conductor_starts",
        "functional/conductor/test_conductor_newcomers.py::test_by_command_only_where_that_is_wanted",
    ),
    "It **can** keep new servers off": (
        "functional/scheduler/test_scheduler_freshness.py::test_a_host_in_two_cells_is_in_neither",
    ),
    "Its key opens its own cell's secrets only": ("unit/service/test_vault.py::test_a_cell_key_is_good_for_that_cell",),
    "It has everything": (),
    "The API database alone opens no secrets": (
        "functional/region/test_secrets_region.py::test_secrets_reach_their_guests_and_are_readable_nowhere",
    ),
}
"""The beginning of each sentence, and the tests that show it. None: it says what nobody is kept from."""


def sentences() -> list[str]:
    """Those of the section, each a line of a list."""
    text = PAGE.read_text().partition("## What a taken part can do")[2].partition("\n## ")[0]
    return re.findall(r"^- (.*)$", text, re.MULTILINE)


def test_every_sentence_has_its_tests() -> None:
    unknown = [sentence for sentence in sentences() if not any(sentence.startswith(start) for start in SHOWN)]
    assert unknown == []


@pytest.mark.parametrize("start", SHOWN)
def test_shown_properties_are_stated_and_their_tests_exist(start: str) -> None:
    assert any(sentence.startswith(start) for sentence in sentences()), "the page does not say it any more"
    for test in SHOWN[start]:
        file, _, name = test.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, test

"""The rules, their defaults, and the files of an operator that override them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.http import policies
from api.http.policy import PolicyRules, Rights
from objects import errors
from service.periodic import wait_until
from tests.support.callers import caller

READ_ONLY = {policies.LIST, policies.SHOW, policies.FLAVORS, policies.LIMITS, policies.QUOTA_SHOW, policies.EXPLAIN}
CHANGES = {policies.CREATE, policies.DELETE}
ADMINISTRATION = {policies.ALL_TENANTS, policies.FORCED_HOST, policies.ATTRIBUTES, policies.QUOTA_UPDATE, policies.STATUS}


def allowed(policy: PolicyRules, *roles: str, project: str | None = None) -> set[str]:
    return {rule for rule in READ_ONLY | CHANGES | ADMINISTRATION if Rights(policy, caller(*roles)).is_allowed(rule, project)}


def test_the_defaults_are_those_of_the_field() -> None:
    """A reader reads, a member changes, both in their own project; an administrator does everything everywhere."""
    policy = PolicyRules()
    assert allowed(policy, "reader") == READ_ONLY
    assert allowed(policy, "member") == READ_ONLY | CHANGES
    assert allowed(policy, "admin") == allowed(policy, "admin", project="p2") == READ_ONLY | CHANGES | ADMINISTRATION
    assert allowed(policy, "somebody") == allowed(policy) == set()
    assert allowed(policy, "member", project="p2") == set()


def test_rule_names_are_unique_and_described() -> None:
    names = [rule.name for rule in policies.list_rules()]
    assert len(names) == len(set(names))
    assert all(rule.description and rule.operations for rule in policies.DOCUMENTED)


def test_a_file_overrides_and_its_changes_take_effect(tmp_path: Path) -> None:
    """What cannot be used leaves the rules as they were."""
    file, other = tmp_path / "policy.yaml", tmp_path / "more.yaml"
    file.write_text(
        '"os_compute_api:servers:create": "role:builder"\n"superconductor:status": "rule:watchers"\nwatchers: "role:watcher"\n'
    )
    policy = PolicyRules((str(file), str(other)))
    assert Rights(policy, caller("builder")).is_allowed(policies.CREATE)
    assert not Rights(policy, caller("member")).is_allowed(policies.CREATE)
    assert Rights(policy, caller("watcher")).is_allowed(policies.STATUS)

    other.write_text('"os_compute_api:servers:create": "role:mason"\n')
    assert wait_until(lambda: Rights(policy, caller("mason")).is_allowed(policies.CREATE), 90.0)
    other.write_text("os_compute_api:servers:create: [}\n")
    os.utime(other, (1, 1))
    assert not wait_until(lambda: not Rights(policy, caller("mason")).is_allowed(policies.CREATE), 1.5)
    other.unlink()
    assert wait_until(lambda: Rights(policy, caller("builder")).is_allowed(policies.CREATE), 90.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [}", "policy.yaml"),
        ("- a\n", "is not a mapping"),
        ("1: 'role:a'\n", "a rule must be a string"),
        ('"os_compute_api:servers:create": 7\n', "a rule must be a string"),
        ('"os_compute_api:servers:creat": "role:a"\n', "did you mean os_compute_api:servers:create"),
        ('"os_compute_api:servers:create": "role:a and"\n', "not a valid check"),
        ('"os_compute_api:servers:create": "rule:nobody_knows"\n', "os_compute_api:servers:create"),
        ('"project_member": "rule:project_member"\n', "project_member"),
    ],
)
def test_a_file_that_means_nothing_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(errors.Misconfigured, match=said):
        PolicyRules((str(file),))


def test_nothing_can_be_forbidden_to_all_by_name(tmp_path: Path) -> None:
    """``!`` is a check: nobody."""
    file = tmp_path / "policy.yaml"
    file.write_text('"os_compute_api:servers:delete": "!"\n')
    assert not Rights(PolicyRules((str(file),)), caller("admin")).is_allowed(policies.DELETE)

"""Decide with oslo.policy whether a caller may do something. An operator's file overrides the defaults without a restart."""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

import yaml
from oslo_config import cfg
from oslo_policy import policy
from oslo_policy._checks import BaseCheck, FalseCheck  # no public name for what a rule is parsed to
from oslo_policy._parser import parse_rule  # Rules.load logs what it cannot read and goes on with a rule that refuses all

from api.http.policies import list_rules
from objects import errors
from objects.base import Object

LOG = logging.getLogger(__name__)

DECISION_CACHE_SIZE = 4096
"""Decisions that are cached: they depend on the rules and the caller only, unless a rule asks another service."""

FILE_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks whether the files have changed."""


class Caller(Object, frozen=True, kw_only=True):
    """The caller as the rules see it. ``roles`` are in lower case."""

    project_id: str
    user_id: str
    roles: frozenset[str]


Judge = Callable[[str, Caller, str, str], bool]
"""Whether a rule allows a caller to act on something of a project and a user."""


class PolicyRules:
    """The rules in force. Thread-safe."""

    def __init__(self, files: tuple[str, ...] = ()) -> None:
        """``files`` are read in order, later ones override earlier ones; a missing file counts as empty. Raises Misconfigured."""
        self._files = tuple(Path(file) for file in files)
        self._looking = threading.Lock()
        self._seen = self._file_stamps()
        self._judge = _build_judge(_read(self._files))
        self._look_at = time.monotonic() + FILE_CHECK_INTERVAL_S

    def judge_in_force(self) -> Judge:
        """Decides by the rules in force. Changed files are reloaded first; if they are invalid, the previous rules stay."""
        if not self._files or time.monotonic() < self._look_at or not self._looking.acquire(blocking=False):
            return self._judge
        try:
            self._look_at = time.monotonic() + FILE_CHECK_INTERVAL_S
            if (stamps := self._file_stamps()) != self._seen:
                self._seen = stamps
                self._judge = _build_judge(_read(self._files))
                LOG.info("reloaded the changed policy files")
        except errors.Misconfigured as error:
            LOG.error("%s; the previous rules stay in force", error)
        finally:
            self._looking.release()
        return self._judge

    def _file_stamps(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_file_stamp(file) for file in self._files)


class Rights:
    """The rights of one caller during one request: each rule is evaluated once."""

    def __init__(self, policy: PolicyRules, caller: Caller) -> None:
        self._policy = policy
        self._caller = caller
        self._answers: dict[tuple[str, str | None, str | None], bool] = {}

    def is_allowed(self, rule: str, project_id: str | None = None, user_id: str | None = None) -> bool:
        """Whether ``rule`` allows the caller to act on something of this project and user; default: the caller's."""
        question = (rule, project_id, user_id)
        known = self._answers.get(question)
        if known is None:
            caller = self._caller
            project = caller.project_id if project_id is None else project_id
            user = caller.user_id if user_id is None else user_id
            known = self._answers[question] = self._policy.judge_in_force()(rule, caller, project, user)
        return known


def _file_stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _read(files: tuple[Path, ...]) -> dict[str, str]:
    """The rules in the files. Raises Misconfigured."""
    rules: dict[str, str] = {}
    for file in files:
        try:
            content = yaml.safe_load(file.read_text())
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise errors.Misconfigured(f"Policy file {file}: {' '.join(str(error).split())}") from error
        if not isinstance(content or {}, dict):
            raise errors.Misconfigured(f"Policy file {file}: is not a mapping of rules to checks")
        for name, text in (content or {}).items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise errors.Misconfigured(f"Policy file {file}: {name}: a rule must be a string")
            rules[name] = text
    return rules


def _build_judge(overrides: Mapping[str, str]) -> Judge:
    """A function that decides by the defaults overridden with ``overrides``. Raises Misconfigured."""
    enforcer = _build_enforcer(overrides)

    def enforce_rule(rule: str, caller: Caller, project_id: str, user_id: str) -> bool:
        target = {"project_id": project_id, "user_id": user_id}
        credentials = {"project_id": caller.project_id, "user_id": caller.user_id, "roles": caller.roles}
        return bool(enforcer.enforce(rule, target, credentials))

    asks_others = any("http:" in text or "https:" in text for text in overrides.values())
    return enforce_rule if asks_others else lru_cache(DECISION_CACHE_SIZE)(enforce_rule)


def _build_enforcer(overrides: Mapping[str, str]) -> policy.Enforcer:
    """An enforcer with the defaults overridden by ``overrides``. Raises Misconfigured for invalid or unused unknown rules."""
    checks: dict[str, BaseCheck] = {default.name: default.check for default in list_rules()}
    known = list(checks)
    for name, text in overrides.items():
        checks[name] = check = parse_rule(text)
        if isinstance(check, FalseCheck) and text.strip() != "!":
            raise errors.Misconfigured(f"Policy: {name}: {text!r} is not a valid check")
    enforcer = policy.Enforcer(cfg.ConfigOpts(), rules=policy.Rules(checks), use_conf=False)
    try:
        enforcer.check_rules(raise_on_violation=True)
    except policy.InvalidDefinitionError as error:
        raise errors.Misconfigured(f"Policy: {error}") from error
    used = " ".join(overrides.values())
    for name in overrides.keys() - set(known):
        if f"rule:{name}" not in used:  # no other rule refers to it
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise errors.Misconfigured(f"Policy: {name}: unknown rule{hint}")
    return enforcer

"""``superconductor upgrade``: whether anything stands in the way of this release, and the end of the way back to the older one."""

from __future__ import annotations

import argparse

from cli.shared.base import ActionShow, AdminLister, Row, Table


class UpgradeCheck(AdminLister):
    """Check databases, cells, buses, hosts, services and keys before or after an upgrade. Nothing is changed.

    Run it with the configuration of the API level. Before an upgrade, run that of the new release beside the old one.

    Exit status 0: no problems. 1: warnings that can wait. 2: a problem that must be fixed first.

    Example: superconductor upgrade check --config-file /etc/superconductor/api.conf
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from cli.databases.upgrade_checks import list_findings

        upgrade_findings = list(list_findings(self.deployment))
        self.status = max(int(finding.level) for finding in upgrade_findings)
        return ("Check", "Result", "Details"), [
            (finding.check, finding.level.shown_name, finding.text) for finding in upgrade_findings
        ]


class UpgradeFinalize(ActionShow):
    """Begin what an older release cannot read. There is no way back from it, but to a backup.

    Run it when every process is upgraded, and the new release has worked long enough for you. Refused while a process of an older
    release is alive, while a host that has one is not called dead ('host set --down'), and while a cell does not answer. May be
    repeated.

    Example: superconductor upgrade finalize --config-file /etc/superconductor/api.conf
    """

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        from cli.databases.finalize import finalize_messages

        before, after = finalize_messages(self.deployment)
        return ("Before", "Now"), (f"messages {before}", f"messages {after}")

"""``superconductor upgrade check``: whether anything stands in the way of this release, and what to do about it."""

from __future__ import annotations

import argparse

from cli.base import AdminLister, Table


class UpgradeCheck(AdminLister):
    """Check databases, cells, buses, hosts, services and keys before or after an upgrade. Nothing is changed.

    Run it with the configuration of the API level. Before an upgrade, run that of the new release beside the old one.

    Exit status 0: no problems. 1: warnings that can wait. 2: a problem that must be fixed first.

    Example: superconductor upgrade check --config-file /etc/superconductor/api.conf
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from cli.upgrade_checks import findings

        found = list(findings(self.deployment))
        self.status = max(int(finding.level) for finding in found)
        return ("Check", "Result", "Details"), [(finding.check, finding.level.shown, finding.text) for finding in found]

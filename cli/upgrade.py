"""``superconductor upgrade check``: whether anything stands in the way of this release, and what to do about it."""

from __future__ import annotations

import argparse

from cli.base import AdminLister, Table


class UpgradeCheck(AdminLister):
    """Look at databases, cells, buses, hosts, services and keys before an upgrade, or after one. Nothing is changed.

    Run it with the configuration of the API level. Before an upgrade, run that of the new release beside the old one.

    Exit status 0: all is well. 1: there are warnings; what they say can wait. 2: something must be done first.

    Example: superconductor upgrade check --config-file /etc/superconductor/api.conf
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from cli.upgrade_checks import findings

        found = list(findings(self.deployment))
        self.status = max(int(finding.level) for finding in found)
        return ("Check", "Result", "Details"), [(finding.check, finding.level.shown, finding.text) for finding in found]

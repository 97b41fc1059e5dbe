"""``superconductor db backfill-names``: record names of servers that must be unique."""

from __future__ import annotations

import argparse

from api import opts
from cli.shared.base import AdminLister, Row, Table
from db.api.servers import names


class DbRecordNames(AdminLister):
    """Record the names of all servers, as [api] unique_server_names asks. Each server whose name another one has is listed.

    Run it after a change of that option, once all API processes have been restarted with it. Until then a new server may take the
    name of one that was accepted before. Servers keep their names. A listed server has an unrecorded name: rename it, or run this
    again after the other server is deleted. Without the option all records are removed. The command can be repeated and
    interrupted.

    Exit status: 0 all names are recorded, 1 servers are listed.

    Example: superconductor db backfill-names
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        scope = opts.unique_names(self.deployment.loaded_conf)
        database = self.deployment.api_database
        rows: list[Row] = []
        page = database.write(names.record_page, scope, "")
        while page.last is not None:
            rows += [
                (shared_name.uuid, shared_name.project_id, shared_name.name, shared_name.holder) for shared_name in page.shared
            ]
            page = database.write(names.record_page, scope, page.last)
        self.status = int(bool(rows))
        return ("ID", "Project", "Name", "Recorded For"), rows

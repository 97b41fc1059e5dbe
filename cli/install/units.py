"""The systemd units of a deployment: one service for each role, a template for the conductors of cells, and a target for all.

Secrets reach a process as credentials only: systemd copies the configuration file, which root alone can read, into memory that the
service's user can read. Processes tell systemd when they serve (``service/supervisor.py``).
"""

from __future__ import annotations

from objects.base import Object
from service.opts import SHUTDOWN

PROGRAMS = "/opt/superconductor/bin"
"""The virtual environment that an operator makes."""
CONFIGURATION = "/etc/superconductor"
STATE = "/var/lib/superconductor"
USER = "superconductor"
STOP_MARGIN_S = 10
"""Seconds that systemd and Kubernetes wait beyond ``graceful_shutdown_timeout``, at which a process ends itself."""
STOP_TIMEOUT_S = SHUTDOWN.default + STOP_MARGIN_S

SYSUSERS = f"""\
# For /etc/sysusers.d: systemd-sysusers makes the user of all services.
u {USER} - "Superconductor" {STATE}
"""

TARGET = """\
[Unit]
Description=Superconductor on this machine

[Install]
WantedBy=multi-user.target
"""

SERVICE = """\
[Unit]
Description=Superconductor: {description}
Wants=network-online.target
# Servers of this machine end after what uses them. It does not matter if they are elsewhere: a process waits for what it needs.
After=network-online.target time-sync.target mariadb.service postgresql.service rabbitmq-server.service
PartOf=superconductor.target
# A process that ends itself has an error in its configuration: give up after some attempts.
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
# Workers serve, so they and not the main process say when.
NotifyAccess=all
User={user}
ExecStart={programs}/superconductor-{role} \\
    --config-file ${{CREDENTIALS_DIRECTORY}}/{credential} --config-dir ${{CONFIGURATION_DIRECTORY}}
# What is secret. systemd copies it at start: restart the service after a change.
LoadCredential={credential}:{etc}/{file}
# What is not: files *.conf of this folder come after it, and 'systemctl reload' reads them again.
ConfigurationDirectory=superconductor/{folder}
ExecReload=/bin/sh -c 'kill -HUP $MAINPID'
# The main process stops its workers itself, within graceful_shutdown_timeout ({graceful} s). With a longer one raise this, too.
KillMode=mixed
TimeoutStopSec={stop}
# It waits for databases and the bus as long as they are away.
TimeoutStartSec=infinity
Restart=on-failure
RestartSec=2
LimitNOFILE=65536
UMask=0077
{state}
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
PrivateDevices=yes
PrivateTmp=yes
PrivateUsers=yes
DevicePolicy=closed
RemoveIPC=yes
KeyringMode=private
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
SystemCallErrorNumber=EPERM

[Install]
WantedBy=superconductor.target
"""


class Unit(Object, frozen=True, kw_only=True):
    """One service. ``file``: its configuration; ``has_state``: whether it writes below ``STATE``, images or guests."""

    name: str
    role: str
    description: str
    file: str = "api.conf"
    has_state: bool = False

    def unit_text(self) -> str:
        credential = "cell.conf" if "%i" in self.file else self.file
        return SERVICE.format(
            description=self.description,
            user=USER,
            programs=PROGRAMS,
            etc=CONFIGURATION,
            role=self.role,
            credential=credential,
            file=self.file,
            folder=self.file.replace(".conf", ".d"),
            graceful=SHUTDOWN.default,
            stop=STOP_TIMEOUT_S,
            state=f"StateDirectory={USER}\nStateDirectoryMode=0750\n" if self.has_state else "",
        )


UNITS = (
    Unit(name="superconductor-api.service", role="api", description="API", has_state=True),
    Unit(name="superconductor-scheduler.service", role="scheduler", description="scheduler"),
    Unit(name="superconductor-conductor.service", role="conductor", description="super conductor", has_state=True),
    Unit(name="superconductor-console-proxy.service", role="console-proxy", description="console proxy"),
    Unit(name="superconductor-conductor@.service", role="conductor", description="conductor of %i", file="%i.conf"),
    Unit(
        name="superconductor-compute.service",
        role="compute",
        description="agent of this host",
        file="compute.conf",
        has_state=True,
    ),
)


def unit_texts() -> dict[str, str]:
    """Each file of the folder ``systemd``, by its name."""
    return {unit.name: unit.unit_text() for unit in UNITS} | {
        "superconductor.target": TARGET,
        "superconductor.sysusers.conf": SYSUSERS,
    }

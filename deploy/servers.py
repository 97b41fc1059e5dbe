"""Servers of our own on the loopback address, for tests, the demo and benchmarks: a broker and two kinds of databases.

Each keeps everything in one folder and is found again there: its data, log, port and administrator's password. Nothing here touches
a server that was started by somebody else. ``Unavailable`` says in one line why a server cannot be had.
"""

from __future__ import annotations

from deploy.mariadb import MariaDB
from deploy.postgresql import PostgreSQL
from deploy.rabbitmq import RabbitMQ
from deploy.server import Server
from deploy.unavailable import Unavailable

__all__ = ["MariaDB", "PostgreSQL", "RabbitMQ", "Server", "Unavailable"]

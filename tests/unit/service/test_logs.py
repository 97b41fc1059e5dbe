"""What a log line holds and what it never holds."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import config, logs
from service.logs import log_step

LOG = logging.getLogger("tests.logs")


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    """A file that all records go to; afterwards logging is again as pytest had it."""
    root = logging.getLogger()
    handlers, level, hook = list(root.handlers), root.level, sys.excepthook
    path = tmp_path / "process.log"
    logs.setup(config.load_options(["--log-file", str(path)], files=[]))
    yield path
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    sys.excepthook = hook


def test_passwords_are_masked_in_messages_and_in_tracebacks(log_file: Path) -> None:
    LOG.warning("cannot reach %s", "mysql://nova:hidden1@db/cell1")
    try:
        raise OSError("rabbit://guest:hidden2@broker:5672/ refused")
    except OSError:
        LOG.exception("no bus")

    text = log_file.read_text()
    assert "mysql://nova:***@db/cell1" in text
    assert "rabbit://guest:***@broker" in text
    assert "hidden" not in text


def test_a_request_id_follows_its_bound_thread(log_file: Path) -> None:
    with logs.Bound("req-1"):
        LOG.info("inside")
        other = threading.Thread(target=LOG.info, args=("beside",))
        other.start()
        other.join()
        LOG.info("given", extra={"request_id": "req-2"})
    LOG.info("outside")

    brackets = {line.rsplit("] ", 1)[1]: line.rsplit("[", 1)[1].split("]")[0] for line in log_file.read_text().splitlines()}
    assert brackets == {"inside": "req-1", "beside": "-", "given": "req-2", "outside": "-"}


def test_libraries_are_quiet_where_our_loggers_are_not(log_file: Path) -> None:
    logging.getLogger("kombu.connection").info("chatter")
    logging.getLogger("sqlalchemy.engine").info("SELECT 1")
    logging.getLogger("conductor.build").info("built")

    assert [line.rsplit(" ", 1)[1] for line in log_file.read_text().splitlines()] == ["built"]


def test_lines_go_to_standard_error_without_eventlet() -> None:
    code = """
import logging, sys
from service import config, logs
logs.setup(config.load_options([], files=[]))
logging.getLogger("tests").info("heard")
print("eventlet" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
    assert done.stderr.endswith(" heard\n")


def test_a_connection_message_of_libraries_is_logged_once(log_file: Path) -> None:
    library = logging.getLogger("oslo.messaging._drivers.impl_rabbit")
    told = {"connection_id": "1", "hostname": "h", "port": 5672, "err_str": "refused"}
    for number in range(50):
        library.error(
            "[%(connection_id)s] %(hostname)s:%(port)s is unreachable: %(err_str)s", told | {"connection_id": str(number)}
        )
    library.error("[%(connection_id)s] %(hostname)s:%(port)s is unreachable: %(err_str)s", told | {"err_str": "timed out"})
    for _ in range(2):
        try:
            raise OSError("vhost not found")
        except OSError:
            library.exception("Failed to process incoming message, retrying..")
    first, second, third = log_file.read_text().splitlines()
    assert first.endswith("h:5672 is unreachable: refused")
    assert second.endswith("h:5672 is unreachable: timed out")
    assert third.endswith("Failed to process incoming message, retrying..: OSError: vhost not found")


def test_an_unwritable_log_is_reported_once_on_stderr(tmp_path: Path) -> None:
    program = """
import logging, sys
from service import config, logs
logs.setup(config.load_options(["--log-file", sys.argv[1]], files=[]))
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
for number in range(20):
    logging.getLogger("tests").warning("line %d", number)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], capture_output=True, text=True, check=True)
    assert done.stderr.count("the log cannot be written") == 1
    assert "Traceback" not in done.stderr.partition("the log cannot be written")[0]


def test_a_step_names_its_caller_like_any_line() -> None:
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    log = logging.Logger("tests.steps")
    log.addHandler(Keep())
    log_step(log, "staged", "9f0c", "req-1", cell="cell1", host=None, attempt=2, note="said why")
    log.info("beside")
    first, second = records
    assert first.getMessage() == "staged cell=cell1 attempt=2: said why"
    assert (first.funcName, first.pathname) == (second.funcName, second.pathname)
    assert first.lineno == second.lineno - 1
    assert vars(first)["extra"] == {"instance": "9f0c", "step": "staged", "cell": "cell1", "attempt": 2}
    quiet = logging.Logger("tests.quiet", logging.WARNING)
    quiet.addHandler(Keep())
    log_step(quiet, "staged", "9f0c")
    assert len(records) == 2


FORGED = "2026-11-22 19:00:00.000 1 INFO api.main [-] root logged in"


def test_a_name_cannot_forge_lines_or_control_terminals(log_file: Path) -> None:
    odd = f"h\n{FORGED}\r\x1b]0;owned\x07\x9b\u2028\udcff"
    LOG.info("host %s", odd)
    LOG.warning("host %s", odd)
    try:
        raise ValueError(odd)
    except ValueError as error:
        LOG.exception("failed for %s", odd)
        LOG.warning("host %s: %s", odd, error)
        LOG.info("host %s", odd, exc_info=True)

    text = log_file.read_text()
    assert not [line for line in text.splitlines() if line.startswith(FORGED)]
    assert text.count("h\\n2026-11-22") >= 4
    for control in ("\r", "\x1b", "\x07", "\x9b", "\u2028"):
        assert control not in text
    assert "Traceback" in text
    starts = [line for line in text.split("\n") if line]
    assert all(line[:4].isdigit() for line in starts), "each line has its own time"


def test_json_lines_stay_json(tmp_path: Path) -> None:
    code = """
import logging, sys
from service import config, logs
logs.setup(config.load_options(["--use-json"], files=[]))
logging.getLogger("tests").info("odd %s", "a\\n\\x1b\\x7f\\udcff")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [line] = done.stderr.splitlines()
    assert json.loads(line)["message"].startswith("odd a\n\x1b\x7f")

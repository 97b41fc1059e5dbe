"""What the driver asks of libvirt: the calls of its binding, counted and timed, and the processes that this one starts."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from typing import Any

from compute.libvirt import binding

PREFIX = "vir"
_LOCAL = ("virEvent", "virGetLastError", "virDomainFree", "virDomainGetUUIDString", "virConnectIsAlive")
"""Calls that ask libvirtd nothing."""


class LibvirtCalls:
    """Counts in all threads while it is entered. ``counts``: by name; ``seconds``: how long they took; ``processes`` started."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.processes = 0
        self._lock = threading.Lock()
        self._libvirt = binding.load_libvirt()
        self._module = self._libvirt.libvirtmod
        sys.addaudithook(self._count_process)

    def __enter__(self) -> LibvirtCalls:
        self._libvirt.libvirtmod = _Counted(self._module, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._libvirt.libvirtmod = self._module

    def reset_counts(self) -> None:
        with self._lock:
            self.counts.clear()
            self.seconds.clear()
            self.processes = 0

    def add_call(self, name: str, seconds: float) -> None:
        with self._lock:
            self.counts[name] += 1
            self.seconds[name] += seconds

    def _count_process(self, event: str, _: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            self.processes += 1


class _Counted:
    """The compiled part of the binding, whose functions are counted."""

    def __init__(self, module: Any, calls: LibvirtCalls) -> None:
        self._module = module
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._module, name)
        if not name.startswith(PREFIX) or name.startswith(_LOCAL):
            return original

        def count_call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*arguments)
            finally:
                self._calls.add_call(name.removeprefix(PREFIX), time.perf_counter() - began)

        setattr(self, name, count_call)
        return count_call

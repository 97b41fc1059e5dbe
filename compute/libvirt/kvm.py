"""Whether this machine can run guests with its processor's virtualization."""

from __future__ import annotations

import os
import re
from pathlib import Path

CPUINFO, DEVICE = Path("/proc/cpuinfo"), Path("/dev/kvm")
X86 = re.compile(r"^vendor_id\s*:", re.MULTILINE)
VIRTUALIZATION = re.compile(r"^flags\s*:.*\b(?:vmx|svm)\b", re.MULTILINE)


def why_no_kvm(cpuinfo: Path = CPUINFO, device: Path = DEVICE) -> str:
    """Why KVM cannot be used; empty if it can.

    The device alone proves nothing on x86: kernels exist that offer it without the processor's help, and guests fail there. libvirt
    offers KVM all the same, so it is not asked.
    """
    text = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    if X86.search(text) and not VIRTUALIZATION.search(text):
        return "the processor has neither vmx nor svm (or the machine's firmware has turned it off)"
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{device} cannot be opened: {error.strerror}"
    return ""

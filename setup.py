"""What setup.cfg cannot say: with ``SUPERCONDUCTOR_COMPILED=1`` in the environment, the modules that decide are compiled.

mypyc makes C of them as they are, and Cython of functions on arrays (``scheduler/table/fused.pyx``); the same in Python stay the
reference, and are all there is without that variable. A wheel is built so, or installed (``SUPERCONDUCTOR_COMPILED=1 pip install
.``): never in place, where a compiled module would go on hiding a source that has been changed. See
docs/decisions/0030-compiled-by-mypyc.md.
"""

import configparser
import os
import re
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

MODULES = (
    "cursor",
    "plan/alternates",
    "plan/claim_planner",
    "plan/conclude",
    "plan/dry_run",
    "plan/engine",
    "plan/explain",
    "plan/job",
    "plan/kept_rows",
    "plan/members",
    "plan/request",
    "plan/shapes",
    "plan/survey",
    "table/columns",
    "table/host_table",
    "table/hosts",
    "table/named_rows",
    "table/tentative_claims",
)
"""Of the scheduler: those a decision spends its time in, and the classes they share. Filters, weighers and drivers stay as they
are, so that a site's own derive from plain Python classes."""

NEEDED = ("cython", "msgspec", "mypy", "numpy")
"""The two compilers, and what they read the types of."""


class BuildElsewhere(build_ext):
    """Refuses to put compiled modules beside their sources."""

    def run(self) -> None:
        if self.inplace or self.editable_mode:
            raise SystemExit("SUPERCONDUCTOR_COMPILED is for wheels: an editable installation runs the sources. Unset it")
        super().run()


def needed() -> list[str]:
    """The requirements of setup.cfg for these."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).with_name("setup.cfg"))
    lines = f"{config['options']['install_requires']}\n{config['options.extras_require']['lint']}".split("\n")
    return [line for line in lines if re.split(r"\W", line)[0] in NEEDED]


def compiled() -> dict[str, object]:
    """The arguments of ``setup`` that say so."""
    try:
        from Cython.Build import cythonize
        from mypyc.build import mypycify
        from numpy import get_include
    except ImportError:  # asked what is needed before it is there
        return {"setup_requires": needed()}
    options = ["--follow-imports=silent", "--ignore-missing-imports"]  # only types of NEEDED matter
    paths = [f"scheduler/{name}.py" for name in MODULES]
    level = os.environ.get("MYPYC_OPT_LEVEL", "3")  # mypy's own name for it; 0 is built soonest, which is enough for tests
    modules = mypycify([*options, *paths], opt_level=level, debug_level="0", group_name="superconductor")
    fused = Extension(
        "scheduler.table.fused",
        ["scheduler/table/fused.pyx"],
        include_dirs=[get_include()],
        define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
        # no product and sum in one: processors that can do it round once, where NumPy rounds twice
        extra_compile_args=[f"-O{level}", "-g0", "-ffp-contract=off"],
    )
    modules += cythonize([fused], build_dir="build")
    return {"ext_modules": modules, "cmdclass": {"build_ext": BuildElsewhere}, "setup_requires": needed()}


setup(**(compiled() if os.environ.get("SUPERCONDUCTOR_COMPILED") == "1" else {}))

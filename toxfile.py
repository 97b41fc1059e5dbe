"""Each stage of the check is an environment of tox: ``ci/stages.py`` lists them. tox finds this file beside its configuration."""

from __future__ import annotations

import sys
from pathlib import Path

from tox.config.loader.memory import MemoryLoader
from tox.config.sets import ConfigSet
from tox.config.types import EnvList
from tox.plugin import impl
from tox.session.state import State

sys.path.insert(0, str(Path(__file__).parent))

from ci.stages import STAGES, USUAL


@impl
def tox_extend_envs() -> tuple[str, ...]:
    """The names that may follow ``-e``."""
    return tuple(STAGES)


@impl
def tox_add_core_config(core_conf: ConfigSet, state: State) -> None:
    """The environments that run where none is named."""
    del state
    core_conf.loaders.insert(0, MemoryLoader(env_list=EnvList(list(USUAL))))

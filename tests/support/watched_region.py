"""A small region of real processes behind proxies, monitored, and what its processes say of themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from chaos import plan
from chaos.place import open_place
from chaos.proxy import Proxies
from deploy.local import health
from deploy.local.health import MemberHealth, State
from deploy.local.region import Region
from deploy.local.shape import Shape
from deploy.local.start import Start
from service.periodic import wait_until

SHAPE = Shape(apis=1, supers=1, schedulers=1, conductors=1, agents=2)
PATIENCE = 120.0


class Watched:
    """A region that serves, and its proxies."""

    def __init__(self, region: Region, proxies: Proxies) -> None:
        self.region = region
        self.proxies = proxies

    @property
    def names(self) -> set[str]:
        return {member.name for member in SHAPE.list_members()}

    def look(self) -> Mapping[str, MemberHealth]:
        return health.ask_members(self.region.notes, 30.0)

    def told(self, name: str, patience: float = 90.0) -> MemberHealth:
        return health.ask_member(self.region.notes.monitored_ports()[name], patience)

    def not_well(self) -> set[str]:
        return {name for name, told in self.look().items() if told.state is not State.WELL}

    def wait_for(self, unwell: set[str]) -> None:
        """Until these say that they are not well, and all others that they are."""
        assert wait_until(lambda: self.not_well() == unwell, PATIENCE, pause=0.5), self.look()

    def log_of(self, name: str) -> str:
        return (self.region.folder.log / f"{name}.log").read_text()

    def secrets(self) -> set[str]:
        """Every password and key that the region's files have."""
        texts = [file.read_text() for file in self.region.folder.etc.iterdir()]
        found = {word for text in texts for word in re.findall(r"://[^:/@]+:([^:@/]+)@", text)}
        return found | {word for text in texts for word in re.findall(r"^keys = (.+)$", text, re.MULTILINE)}


@contextmanager
def watched_region(path: Path, change: Callable[[Region], object] = lambda _: None) -> Iterator[Watched]:
    """Such a region at work; ``change`` may change its files before its processes start."""
    boots = plan.plan_boots(
        1, 1.0, 5.0, [[host.name for host in SHAPE.list_hosts() if host.cell == cell] for cell in SHAPE.cell_names()]
    )
    path.chmod(0o711)
    with open_place(path, SHAPE, boots, lambda _: None) as found:
        change(found.region)
        Start(found.region, 2 * PATIENCE).run()
        yield Watched(found.region, found.proxies)

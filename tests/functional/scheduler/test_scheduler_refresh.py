"""What an operator changed a moment ago counts for the next boot: the scheduler looks again before it refuses."""

from __future__ import annotations

from pathlib import Path

from tests.support.region import host, region


def test_a_zone_created_recently_takes_boots_immediately(tmp_path: Path) -> None:
    with region(tmp_path, [host(f"h{number}") for number in range(3)]) as cloud:
        for number in range(3):
            zone = f"zone{number}"
            cloud.commands.run("aggregate", "create", zone, "--zone", zone, "--host", f"h{number}")
            uuid = cloud.boot(f"in-{zone}", availability_zone=zone)
            assert cloud.wait_for(uuid, "ACTIVE")["OS-EXT-AZ:availability_zone"] == zone

"""What stands in for a weight version that went with a machine's memory."""

from __future__ import annotations

from desk import Desk

from rftd.streams.events.weights import WeightsPublished, WeightsRetired


def of_version(desk: Desk, version: int) -> int | None:
    found = desk.state.weights.of_version(version, desk.state.spine)
    return found.version if found else None


def test_the_next_version_serves_for_one_that_was_lost_and_for_no_other() -> None:
    desk = Desk()
    for version in (2, 3, 5):
        desk.state.spine.checksums[version, 0] = f"c{version}"
        desk.publish(version)
    assert [of_version(desk, version) for version in range(6)] == [0, None, 2, 3, None, 5]
    desk.put(WeightsRetired(version=0, generation=0, reason="newer versions exist"))
    assert of_version(desk, 0) is None
    for version in (2, 3):
        desk.put(WeightsRetired(version=version, generation=0, reason="gone", lost=True))
    assert [of_version(desk, version) for version in range(6)] == [None, None, 5, 5, None, 5]
    desk.state.spine.checksums[3, 1] = "d3"
    again = WeightsPublished(
        version=3, generation=1, stage=0, method="memory", path="", manifest="m", checksum="d3", size_bytes=1
    )
    desk.put(again)
    assert [of_version(desk, version) for version in (2, 3)] == [3, 3], "made again by another generation"

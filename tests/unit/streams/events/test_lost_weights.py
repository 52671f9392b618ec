"""What stands in for a weight version that went with a machine's memory."""

from __future__ import annotations

from synthetic.worlds.desk import Desk, published

from rftd.streams.events.registry import Event
from rftd.streams.events.weights import WeightsPublished, WeightsRetired
from rftd.streams.log.codec import decode
from rftd.streams.log.envelope import Decoded


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


def retired(version: int) -> WeightsRetired:
    return WeightsRetired(version=version, generation=0, reason="newer versions exist")


def test_what_was_retired_counts_again_once_a_successor_that_went_back_announces_it() -> None:
    desk = Desk()
    weights = desk.state.weights
    taken: list[Decoded] = []

    def take(event: Event, epoch: int) -> None:
        desk.recorder.write(event, desk.id, role="trainer", epoch=epoch)
        taken.append(decode(desk.recorder.records[-1]))
        weights.apply(taken[-1])

    for version in (2, 4, 6):
        desk.state.spine.checksums[version, 0] = f"c{version}"
        take(published(version), 1)
    for version in (0, 2, 4):
        take(retired(version), 1)
    assert weights.standing == [(6, 0)], "what lies between was never announced"
    assert weights.over(3, 0), "what lies between was never announced"
    weights.apply(taken[0])
    assert weights.standing == [(6, 0)], "a record that comes again makes nothing stand"
    desk.state.spine.checksums[3, 0] = "c3"
    for version in (0, 3, 4):
        take(published(version), 2)
    assert weights.standing == [(0, 0), (3, 0), (4, 0), (6, 0)]
    assert [of_version(desk, version) for version in (0, 3, 4)] == [0, 3, 4]
    for event in list(taken):
        weights.apply(event)
    assert weights.standing == [(0, 0), (3, 0), (4, 0), (6, 0)], "nor does it undo anything"
    take(retired(3), 2)
    take(published(3), 2)
    assert weights.standing == [(0, 0), (4, 0), (6, 0)]
    assert weights.over(3, 0)

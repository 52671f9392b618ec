"""Weights by name: no bytes come here, a checksum says nothing of numbers, and who takes bytes refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rftd.ops.errors import ConfigError, DataError
from rftd.storage.files.service_state import PATH, ServiceState, names_service
from rftd.workers.training.tidying import named_states
from rftd.workers.weights.channel import Exported, WeightsRef, check_takes
from rftd.workers.weights.checksum import form_of
from rftd.workers.weights.registry import CHANNELS, Channels, open_weights
from rftd.workers.weights.service import SERVICE, ServiceChannel, opaque_checksum


class OneService:
    """A `WeightService` that knows some names, and forgets what it is told to."""

    def __init__(self, *names: str) -> None:
        self.names = {*names}

    def holds_name(self, name: str) -> bool:
        return name in self.names

    def forget_name(self, name: str) -> None:
        self.names.discard(name)


class Named:
    """A `NamedSnapshot`."""

    def name(self) -> str:
        return "there://run/step-3"

    def checksum(self) -> str:
        return opaque_checksum("run", "3")


def ref_of(exported: Exported) -> WeightsRef:
    return WeightsRef(
        version=3,
        generation=1,
        path=exported.path,
        manifest=exported.manifest,
        checksum=exported.checksum,
        method=SERVICE,
    )


def test_a_name_is_announced_asked_for_and_retired() -> None:
    service = OneService("there://run/step-3")
    channel = Channels("/job", service=service).of(SERVICE)
    assert isinstance(channel, ServiceChannel)
    exported = channel.publish_name(Named())
    assert exported == channel.publish_name(Named())
    assert exported.size_bytes == 0
    assert form_of(exported.checksum) == "name"
    ref = ref_of(exported)
    assert channel.holds(ref)
    channel.retire(ref)
    assert not channel.holds(ref)
    channel.retire(ref)
    # Whoever cannot ask the service does not know them to be gone.
    assert Channels().of(SERVICE).holds(ref)


def test_nobody_opens_a_name_as_bytes_or_publishes_bytes_as_a_name() -> None:
    ref = ref_of(Exported(path="there://run/step-3", manifest="m", checksum=opaque_checksum("a"), size_bytes=0))
    with pytest.raises(ConfigError, match="at a service, which does not transfer them") as error:
        open_weights(ref)
    assert error.value.where == "there://run/step-3"
    with pytest.raises(ConfigError, match="at a service, which does not transfer them"):
        Channels().of(SERVICE).publish({}, version=1, generation=0)
    for method in CHANNELS.names():
        channel = Channels("/job").of(method)
        if method == SERVICE:
            check_takes(channel, "name", method)
            with pytest.raises(ConfigError, match="takes them as a name at a service"):
                check_takes(channel, "bytes", method)
        else:
            with pytest.raises(ConfigError, match="gives weights as a name at a service"):
                check_takes(channel, "name", method)


def test_an_opaque_checksum_tells_executions_apart() -> None:
    assert opaque_checksum("a", "b") == opaque_checksum("a", "b")
    assert len({opaque_checksum(*parts) for parts in (("a", "b"), ("ab",), ("a", "b", ""), ("b", "a"))}) == 4


def test_a_checkpoint_names_its_state(tmp_path: Path) -> None:
    state = ServiceState(service="s", base_model="m", path="there://run/state-3", checksum=opaque_checksum("3"))
    (tmp_path / "actor").mkdir()
    assert not names_service(tmp_path)
    with pytest.raises(DataError, match="names no state at a service"):
        ServiceState.read(tmp_path)
    state.write(tmp_path)
    assert ServiceState.read(tmp_path) == state
    assert named_states([tmp_path, tmp_path / "other"]) == [state]
    (tmp_path / PATH).write_text((tmp_path / PATH).read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(DataError, match="checkpoint"):
        ServiceState.read(tmp_path)

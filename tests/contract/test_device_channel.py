"""The channel `nccl` beyond the contract, between real processes over gloo: deaths of either side, several receivers.

Between GPUs the same code goes over NCCL; that was not run.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch
from synthetic.models.weight_receivers import ref_of

from rftd.ops.decoding import json_decoder
from rftd.ops.errors import WeightsElsewhereError, WorkError
from rftd.workers.weights import tensor_link
from rftd.workers.weights.channel import Exported, WeightsRef
from rftd.workers.weights.device import DeviceChannel

CPU = torch.device("cpu")


def tensors_of(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    tied = torch.randn(300, 70, generator=random)
    return {"a": torch.randn(1000, 300, generator=random), "b": tied, "c": tied + 1, "d": tied, "e": torch.tensor([7])}


def published(channel: DeviceChannel, version: int) -> WeightsRef:
    return ref_of("nccl", channel.publish_tensors(tensors_of(version), version=version, generation=0), version)


def assert_received(ref: WeightsRef) -> None:
    with DeviceChannel("127.0.0.1").open_tensors(ref, CPU) as found:
        expected = tensors_of(ref.version)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert found["b"] is found["d"]


def started(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


RECEIVER = """
import os, signal, sys
import torch
from rftd.ops.decoding import json_decoder
from rftd.workers.weights import tensor_link
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.device import DeviceChannel
ref, dies_at = json_decoder(WeightsRef).decode(sys.argv[1].encode()), int(sys.argv[2])
parts, calls = tensor_link._parts, 0
def dying(tensor):
    global calls
    calls += 1
    if calls == dies_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return parts(tensor)
tensor_link._parts = dying
with DeviceChannel("127.0.0.1").open_tensors(ref, torch.device("cpu")) as found:
    print(sum(each.nbytes for each in found.values()))
"""

PUBLISHER = """
import os, signal, sys
import msgspec, torch
from rftd.workers.weights import tensor_link
from rftd.workers.weights.device import DeviceChannel
parts, calls = tensor_link._parts, 0
def dying(tensor):
    global calls
    calls += 1
    if calls == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return parts(tensor)
tensor_link._parts = dying
channel = DeviceChannel("127.0.0.1")
exported = channel.publish_tensors({"a": torch.zeros(9), "b": torch.zeros(8)}, version=1, generation=0)
print(msgspec.json.encode(exported).decode(), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_receivers_in_processes_of_their_own_one_of_which_dies_in_the_middle() -> None:
    channel = DeviceChannel("127.0.0.1")
    ref = published(channel, 1)
    said = msgspec.json.encode(ref).decode()
    receivers = [started(RECEIVER, said, dies_at) for dies_at in ("0", "2", "0")]
    size = sum(each.nbytes for each in tensors_of(1).values())
    answers = [receiver.communicate(timeout=120)[0] for receiver in receivers]
    assert [receiver.returncode for receiver in receivers] == [0, -signal.SIGKILL, 0]
    assert [int(answers[0]), int(answers[2])] == [size, size]
    assert_received(ref)


@pytest.mark.slow
def test_a_publisher_that_dies_in_the_middle_is_an_error_and_what_it_held_is_gone() -> None:
    publisher = started(PUBLISHER)
    assert publisher.stdout is not None
    exported = json_decoder(Exported).decode(publisher.stdout.readline())
    ref = ref_of("nccl", exported)
    reader = DeviceChannel("127.0.0.1")
    assert reader.holds(ref)
    with pytest.raises(WorkError, match="publisher does not answer"), reader.open_tensors(ref, CPU):
        pass
    assert publisher.wait(timeout=240) == -signal.SIGKILL
    assert not reader.holds(ref)
    with pytest.raises(WorkError, match="publishes them again"), reader.open_tensors(ref, CPU):
        pass


def test_transfer_completes_when_retired_midway_but_not_when_retired_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channel = DeviceChannel("127.0.0.1")
    first, second = published(channel, 1), published(channel, 2)
    parts = tensor_link._parts

    def retiring(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        channel.retire(first)
        return parts(tensor)

    with monkeypatch.context() as patched:
        patched.setattr(tensor_link, "_parts", retiring)
        assert_received(first)
    assert not channel.holds(first)
    # Retired after its layout was read, and before it was asked for.
    shown = tensor_link.shown

    def late(ref: WeightsRef) -> bytes:
        layout = shown(ref)
        channel.retire(ref)
        return layout

    monkeypatch.setattr(tensor_link, "shown", late)
    with pytest.raises(WorkError, match="retired"), DeviceChannel("127.0.0.1").open_tensors(second, CPU):
        pass


def test_numbers_that_change_on_the_way_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ref = published(DeviceChannel("127.0.0.1"), 1)
    parts, sender = tensor_link._parts, "send-weights"

    def damaged(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
        if threading.current_thread().name == sender and tensor.shape == (300, 70):
            tensor = tensor.clone()
            tensor[17, 3] = torch.nextafter(tensor[17, 3], torch.tensor(9.0))
        return parts(tensor)

    monkeypatch.setattr(tensor_link, "_parts", damaged)
    with pytest.raises(WorkError, match="tensor 'b' is damaged"):
        assert_received(ref)


def test_a_ref_of_another_host_or_of_no_publisher_is_refused_with_the_reason() -> None:
    ref = published(DeviceChannel("127.0.0.1"), 1)
    for path in ("", "/nowhere", "127.0.0.1:0/v1-g0", "127.0.0.1:99999999/v1-g0", "127.0.0.1:1/v1-g0"):
        wrong = msgspec.structs.replace(ref, path=path)
        with pytest.raises(WorkError), DeviceChannel("127.0.0.1").open_tensors(wrong, CPU):
            pass
    away = msgspec.structs.replace(ref, path="127.0.0.1:1/v1-g0", host="elsewhere.example")
    with opened(away) as raised:
        assert "RFTD_WEIGHTS_ADDRESS" in str(raised.value.fix)


@contextmanager
def opened(ref: WeightsRef) -> Iterator[pytest.ExceptionInfo[WeightsElsewhereError]]:
    with (
        pytest.raises(WeightsElsewhereError, match=r"of elsewhere\.example alone") as raised,
        DeviceChannel("127.0.0.1").open_tensors(ref, CPU),
    ):
        pass
    yield raised

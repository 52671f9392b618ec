"""What every weight channel promises: whole or not there, verified, safe for those who still hold what was retired."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import numpy as np
import pytest
from synthetic.docs.package import install_packed_weights
from synthetic.models.weight_receivers import ref_of

from rftd.ops.errors import ConfigError, ConflictError, WorkError
from rftd.workers.weights.channel import WeightChannel, WeightsRef, check_takes
from rftd.workers.weights.checksum import form_of
from rftd.workers.weights.registry import CHANNELS, Channels
from rftd.workers.weights.tensor_bytes import TensorBytes, Weights
from rftd.workers.weights.tensor_digests import TensorDigests
from rftd.workers.weights.torch_bytes import tensors_of

Make = Callable[[], WeightChannel]


THIRD_PARTY = "packed"
"""The channel of docs/extending.md."""


OF_BYTES = [*(name for name in CHANNELS.names() if name != "service"), THIRD_PARTY]
"""A channel of names has no bytes to open: `test_named_weights` has what holds of it."""
FILES = [name for name in OF_BYTES if name != "nccl"]
in_files = pytest.mark.parametrize("method", FILES, indirect=True)
"""What holds of channels whose versions are files; `test_device_channel` has what takes its place for the other."""


@pytest.fixture(params=OF_BYTES)
def method(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a channel, which is installed: for this process and for those that it starts."""
    if request.param == THIRD_PARTY:
        install_packed_weights(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    name: str = request.param
    return name


@pytest.fixture
def make(method: str, tmp_path: Path) -> Make:
    """Channels of one experiment, each as another process would make it; of what a process holds, the same one."""
    if method == "nccl":
        one = Channels().of(method)
        return lambda: one
    return lambda: Channels(str(tmp_path / "job"), str(tmp_path / "memory")).of(method)


def weights_of(seed: int, rows: int = 300) -> dict[str, TensorBytes]:
    """A few tensors of odd sizes, two of them tied."""
    random = np.random.default_rng(seed)
    tied = _tensor("float32", random.standard_normal((rows, 7)).astype("<f4"))
    return {
        "head": tied,
        "embedding": tied,
        "norm": _tensor("bfloat16", random.integers(0, 2**16, 5, dtype="<u2")),
        "count": TensorBytes("int64", (), memoryview(random.bytes(8))),
        "nothing": TensorBytes("float32", (0, 3), memoryview(b"")),
    }


def _tensor(dtype: str, values: np.ndarray) -> TensorBytes:
    return TensorBytes(dtype, values.shape, memoryview(values.tobytes()))


def published(channel: WeightChannel, weights: Weights, version: int) -> WeightsRef:
    """What was announced. No channel reads the method, by which its process finds it."""
    return ref_of("", channel.publish(weights, version=version, generation=0), version)


def loaded(channel: WeightChannel, ref: WeightsRef) -> dict[str, bytes]:
    with channel.open(ref) as weights:
        return {name: bytes(each.data) for name, each in weights.items()}


def plain(weights: Weights) -> dict[str, bytes]:
    return {name: bytes(each.data) for name, each in weights.items()}


def test_what_is_published_is_what_another_process_opens(make: Make) -> None:
    weights = weights_of(1)
    ref = published(make(), weights, 1)
    assert ref.checksum == TensorDigests(threads=1).of(form_of(ref.checksum), tensors_of(weights))
    with make().open(ref) as found:
        assert plain(found) == plain(weights)
        assert {name: (each.dtype, each.shape) for name, each in found.items()} == {
            name: (each.dtype, each.shape) for name, each in weights.items()
        }
        assert found["head"] is found["embedding"]
    assert make().holds(ref)


@in_files
def test_the_ref_alone_is_enough_for_a_process_without_torch(make: Make, method: str) -> None:
    """A server that holds the model in a process of its own opens and verifies the weights by itself."""
    weights = weights_of(1)
    ref = ref_of(method, make().publish(weights, version=1, generation=0), 1)
    for sent, answer in ((ref, ref.checksum), (msgspec.structs.replace(ref, checksum="0" * 32), "refused")):
        done = subprocess.run(
            [sys.executable, "-P", "-c", _ELSEWHERE],
            input=msgspec.json.encode(sent),
            capture_output=True,
            timeout=240,
            check=True,
        )
        assert done.stdout.decode().split() == [answer, "False"]


_ELSEWHERE = """
import sys
from rftd.ops.decoding import json_decoder
from rftd.ops.errors import WorkError
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.checksum import checksum
from rftd.workers.weights.registry import open_weights
try:
    with open_weights(json_decoder(WeightsRef).decode(sys.stdin.buffer.read())) as found:
        print(checksum(found))
except WorkError:
    print("refused")
print("torch" in sys.modules)
"""


class Distant:
    """A channel between devices; what it does is of no matter here."""

    takes = ("tensors",)


def test_a_kind_of_weights_that_no_channel_takes_is_refused_with_the_reason(make: Make, method: str) -> None:
    channel = make()
    check_takes(channel, "bytes", method)
    check_takes(cast("WeightChannel", Distant()), "tensors", "distant")
    with pytest.raises(ConfigError, match=rf"as a name at a service, .* channel '{method}' takes .* bytes of the host"):
        check_takes(channel, "name", method)
    with pytest.raises(ConfigError, match=r"as bytes of the host, .* 'distant' takes them as tensors on devices"):
        check_takes(cast("WeightChannel", Distant()), "bytes", "distant")


def test_repeating_is_idempotent_and_other_weights_are_refused(make: Make) -> None:
    first = published(make(), weights_of(1), 1)
    assert published(make(), weights_of(1), 1) == first
    with pytest.raises(ConflictError):
        published(make(), weights_of(2), 1)
    assert loaded(make(), first) == plain(weights_of(1))


def test_retired_weights_are_gone_for_others_and_safe_for_those_who_hold_them(make: Make) -> None:
    trainer, explorer = make(), make()
    refs = [published(trainer, weights_of(version), version) for version in range(3)]
    with explorer.open(refs[0]) as held:
        trainer.retire(refs[0])
        trainer.retire(refs[0])
        later = [published(trainer, weights_of(version), version) for version in range(3, 6)]
        assert plain(held) == plain(weights_of(0))
    assert not trainer.holds(refs[0])
    with pytest.raises(WorkError):
        loaded(explorer, refs[0])
    for version, ref in enumerate((refs[1], refs[2], *later), start=1):
        assert loaded(explorer, ref) == plain(weights_of(version))


def test_versions_follow_each_other_through_the_same_readers(make: Make) -> None:
    trainer, explorers = make(), [make() for _ in range(3)]
    kept: list[WeightsRef] = []
    for version in range(12):
        weights = weights_of(version, rows=300 if version < 9 else 400)
        kept.append(published(trainer, weights, version))
        for explorer in explorers:
            assert loaded(explorer, kept[-1]) == plain(weights)
        if len(kept) > 2:
            trainer.retire(kept.pop(0))
        trainer.prepare()
    assert all(trainer.holds(ref) for ref in kept)


@pytest.mark.parametrize(
    "change",
    [{"manifest": "0" * 32}, {"checksum": "0" * 32}, {"version": 2}, {"generation": 1}, {"path": "/nowhere/v1-g0"}],
    ids=lambda change: next(iter(change)),
)
def test_others_than_announced_are_refused(make: Make, change: dict[str, object]) -> None:
    ref = published(make(), weights_of(1), 1)
    with pytest.raises(WorkError):
        loaded(make(), msgspec.structs.replace(ref, host="", **change))


@in_files
def test_every_flipped_byte_of_a_tensor_and_every_cut_is_refused(make: Make) -> None:
    weights = weights_of(1, rows=2)
    ref = published(make(), weights, 1)
    path = Path(ref.path)
    file = path / "model.safetensors" if path.is_dir() else path
    whole = file.read_bytes()
    begin = max(whole.find(bytes(weights["head"].data)), 0)  # of a packed file any byte is one of a tensor
    norm = max(whole.find(bytes(weights["norm"].data)), 0)
    for place in (begin, begin + 55, norm + 9, 0, 9, 20):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(WorkError):
            loaded(make(), ref)
    for size in (0, 1, 15, 16, 100, len(whole) // 2, begin + 3):
        file.write_bytes(whole[:size])
        with pytest.raises(WorkError):
            loaded(make(), ref)
    file.write_bytes(whole)
    assert loaded(make(), ref) == plain(weights)


@pytest.mark.slow
@in_files
def test_a_publisher_that_was_killed_leaves_nothing_in_the_way(make: Make, method: str, tmp_path: Path) -> None:
    """Killed at each of its first system calls that name a file: what lies there then is whole, or not there."""
    for number in range(1, 20):
        arguments = (method, str(tmp_path / "job"), str(tmp_path / "memory"), str(number))
        ended = subprocess.run([sys.executable, "-P", "-c", _KILLED, *arguments], timeout=240, check=False)
        assert ended.returncode in (0, -signal.SIGKILL)
        if ended.returncode == 0:
            break
    assert ended.returncode == 0
    assert number > 3
    ref = published(make(), {"w": TensorBytes("uint8", (3,), memoryview(b"abc"))}, 1)
    assert loaded(make(), ref) == {"w": b"abc"}
    assert sorted(each.name for each in Path(ref.path).parent.iterdir() if not each.name.startswith(".")) == [
        os.path.basename(ref.path)
    ]


_KILLED = """
import os, signal, sys
from rftd.workers.weights.registry import Channels
from rftd.workers.weights.tensor_bytes import TensorBytes
method, job, memory, number = sys.argv[1:]
calls = 0
def audit(event, arguments):
    global calls
    if event in ("open", "os.rename", "os.mkdir", "os.remove", "mmap.__new__"):
        calls += 1
        if calls == int(number):
            os.kill(os.getpid(), signal.SIGKILL)
channel = Channels(job, memory).of(method)
sys.addaudithook(audit)
channel.publish({"w": TensorBytes("uint8", (3,), memoryview(b"abc"))}, version=1, generation=0)
"""

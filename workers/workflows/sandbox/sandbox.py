"""`Sandbox`: runs commands of other people in a folder, an environment and processes of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Protocol, TypeAlias

import msgspec

from rftd.ops import limits
from rftd.ops.errors import RolloutError
from rftd.workers.workflows.sandbox.run_folder import RunFolder

Isolation: TypeAlias = Literal["auto", "namespaces", "process", "docker"]
"""`namespaces`: refused where the kernel has none; `auto`: namespaces where possible, else plain processes."""
_Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e7)]

_BOUND_WORDS: Final = {
    "time": "{wall_s:g} s",
    "cpu": "{cpu_s:g} s of processor time",
    "memory": "{memory_mib} MiB of memory",
    "disk": "{disk_mib} MiB of files",
    "processes": "{processes} processes and threads",
    "output": "{output_mib} MiB of output",
}
"""Text of each exceeded limit, in the reason of a failed rollout."""


class SandboxBounds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one command together with all its processes."""

    wall_s: _Seconds = 1800.0
    """Seconds until SIGTERM, and a second later SIGKILL."""
    cpu_s: _Seconds | None = None
    """Processor time of each process; None: unbounded."""
    memory_mib: _Positive = 2048
    disk_mib: _Positive = 1024
    """Files written by the command, besides those that it was started with."""
    processes: _Positive = 256
    """Processes and threads at once."""
    output_mib: _Positive = 64
    """Standard output and standard error together; only their ends are kept."""

    def words(self, bound: str) -> str:
        """Returns a bound as text: `64 MiB of memory`."""
        return _BOUND_WORDS[bound].format(**msgspec.structs.asdict(self))


class SandboxCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run: its words, its whole environment, and its reach."""

    words: tuple[str, ...]
    environ: Mapping[str, str] = {}
    """All variables of the command, besides PATH, HOME, TMPDIR and LANG."""
    folder: RunFolder
    """Folder in which the command runs."""
    bounds: SandboxBounds = SandboxBounds()
    readable: tuple[str, ...] = ()
    """Paths readable besides those of the system and of Python, at equal names."""
    network: bool = False
    """True: the network of the machine; else none but `ports`."""
    ports: tuple[int, ...] = ()
    """Ports of this machine's loopback, reachable at equal numbers."""
    input: bytes = b""
    """Standard input."""
    warm: bool = False
    """True: the words are Python, `-Ic` and a text, and in namespaces the text runs in a fork of a Python with the
    standard library imported, which saves the start of a program.
    """
    tail_bytes: int = limits.SANDBOX_TAIL_SIZE_BYTES
    """Bytes kept of the end of each output."""


class SandboxReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did, and how it ended."""

    isolation: str
    """`namespaces`, `process` or `docker`."""
    exit: int
    """Exit code; -N after signal N."""
    bound: str = ""
    """Bound at which the command was ended: `time`, `cpu`, `memory`, `disk`, `processes` or `output`."""
    wall_s: float
    cpu_s: float = 0.0
    memory_bytes: int = 0
    """Largest memory seen, over all processes; in containers 0."""
    disk_bytes: int = 0
    processes: int = 0
    """Most processes and threads seen at once."""
    output_bytes: int = 0
    """Everything written to standard output and standard error."""
    left: int = 0
    """Processes that ran on after the command, and were ended."""
    stdout: str = ""
    """The end of the standard output."""
    stderr: str = ""
    """The end of the standard error."""

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of the run for a rollout's record, as `sandbox_...`."""
        return {
            "sandbox_wall_s": round(self.wall_s, 3),
            "sandbox_cpu_s": round(self.cpu_s, 3),
            "sandbox_memory_mib": round(self.memory_bytes / limits.MIB, 1),
            "sandbox_disk_mib": round(self.disk_bytes / limits.MIB, 3),
            "sandbox_processes": float(self.processes),
            "sandbox_output_kib": round(self.output_bytes / 1024, 1),
            "sandbox_left_processes": float(self.left),
        }

    def check(self, name: str, bounds: SandboxBounds) -> None:
        """Raises RolloutError at a bound or an exit code other than 0, with the last lines of standard error."""
        if self.bound:
            raise RolloutError(
                f"{name} was ended at its bound of {bounds.words(self.bound)}{self._used()}{self._last_lines()}",
                field=_FIELDS[self.bound],
                fix="correct the program, or raise the bound",
            )
        if self.exit != 0:
            code = f"signal {-self.exit}" if self.exit < 0 else f"exit code {self.exit}"
            raise RolloutError(f"{name} ended with {code}{self._used()}{self._last_lines()}", fix="correct the program")

    def _used(self) -> str:
        return (
            f" after {self.wall_s:.1f} s, with {self.memory_bytes / limits.MIB:.0f} MiB of memory and "
            f"{self.processes} processes ({self.isolation})"
        )

    def _last_lines(self) -> str:
        lines = [line.rstrip() for line in self.stderr.splitlines() if line.strip()][-_LINES:]
        return ": " + "\n".join(lines)[-limits.SANDBOX_ERROR_CHARS :] if lines else ""


_LINES: Final = 6
"""Last lines of standard error in the reason of a failed rollout."""
_FIELDS: Final = {
    "time": "wall_s",
    "cpu": "cpu_s",
    "memory": "memory_mib",
    "disk": "disk_mib",
    "processes": "processes",
    "output": "output_mib",
}


class Sandbox(Protocol):
    """Runs commands, any number at once; a cancelled run ends its command with all its processes."""

    async def run(self, command: SandboxCommand) -> SandboxReport:
        """Runs a command to its end, or to a bound. Raises RolloutError if the isolation is impossible here."""
        ...

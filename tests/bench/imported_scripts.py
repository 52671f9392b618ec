"""What `rftd import-verl` makes of a folder of veRL's launch scripts, and what would be lost on the way without a word.

Each script below FOLDER is imported, and the result is checked as `rftd config check` does on a cluster of GPUs.
Counted, by the folder right below FOLDER: scripts whose file passes, whose file has gaps, whose file the check refuses,
and which the import refuses, each with its reason. Of the files that pass, every key that the script gives as a literal
is compared with the resolved experiment, and every field that is worked out of several keys with what the guide's rules
give (`verl_expectations`); a key without a line in the report is a silent loss.
Run: python -P tests/bench/imported_scripts.py FOLDER [--each]
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from figures import tell
from verl_expectations import expected

from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.field_path import parse
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import load_text
from rftd.daemon.config.verl.hydra import HydraProblem, read_value
from rftd.daemon.config.verl.importing import ImportedExperiment, import_file
from rftd.daemon.config.verl.table import canonical, find
from rftd.streams.spec.spec import ExperimentSpec
from rftd.workers.devices.host import Device, Host

LITERAL = re.compile(
    r"(?<![\w.+~$/@-])\+{0,2}([a-z]\w*(?:\.\w+)+)=(?:'([^'\n$`]*)'|([^\s'\"$`()<>|&;\\]+))(?=[\s\"')\\]|$)"
)
COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
ASYNCHRONOUS = re.compile(r"fully_async_main|one_step_off|async_training\.")
RUNS = re.compile(r"(?m)^[^#\n]*\b(?:main_ppo|main_dapo|fully_async_main|one_step_off_policy\S*main_ppo)\b")


PACKAGES = {"vllm": "0.11.0", "verl": "0.9.1", "ray": "2.50.0", "megatron-core": "0.14.0", "mbridge": "0.15.0"}


def cluster() -> Host:
    """A cluster of 64 machines with 16 GPUs each and the engines for them: no script asks for more."""
    gpus = tuple(
        Device(kind="cuda", index=index, name="H200", memory_bytes=141 << 30, node=f"10.0.0.{node}")
        for node in range(64)
        for index in range(16)
    )
    return Host(name="bench", devices=gpus, clustered=True, packages=PACKAGES)


class AnyVariable(dict[str, str]):
    """An environment in which every variable is set."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return "1"

    def get(self, name: str, default: object = None) -> str:  # type: ignore[override]
        """The value of a variable."""
        return self[name]


ENVIRON = AnyVariable(HOME="/home/me")
CLUSTER = cluster()
MACHINE = Host(name="bench", devices=CLUSTER.devices[:1], packages=PACKAGES)


def literals(text: str) -> dict[str, Any]:
    """Keys that the script gives once, with a value that is no variable, whatever its conditions are."""
    given: dict[str, list[Any]] = defaultdict(list)
    for found in LITERAL.finditer(COMMENT.sub("", text)):
        name, quoted, plain = found.groups()
        try:
            given[name].append(read_value(quoted if quoted is not None else plain))
        except HydraProblem:
            continue
    return {name: values[0] for name, values in given.items() if len(values) == 1}


def value_at(tree: Any, path: str) -> Any:
    """The value of a field, or None where there is none; a single taskset stands in `taskset`."""
    path = path.replace(".tasksets[0]", ".taskset") if "tasksets" not in tree["buffer"]["explorer_input"] else path
    for word in parse(path) or ():
        try:
            tree = tree[word]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def same(value: Any, other: Any) -> bool:
    """True of equal values; numbers may differ by rounding, and a path by its folder."""
    if isinstance(value, int | float) and isinstance(other, int | float):
        return math.isclose(value, other, rel_tol=1e-9)
    return str(value).lower() == str(other).lower() or str(other).endswith(str(value).removeprefix("."))


def differences(text: str, imported: ImportedExperiment, spec: ExperimentSpec) -> tuple[list[str], list[str], int]:
    """Keys of the script that no line of the report names, fields that came out with another value and are not said to,
    and the number of fields that were compared."""
    named = {line.key.partition("=")[0].lstrip("+~") for line in imported.lines}
    named |= {canonical(name) for name in named}
    config = effective_config(spec)
    lost: list[str] = []
    other: list[str] = []
    compared = 0
    given = literals(text)
    for name, value in given.items():
        row = find(name)
        if canonical(name) not in named and name not in named:
            lost.append(name)
        elif row is not None and row.name == canonical(name) and row.fate in ("field", "tree") and value is not None:
            resolved = value_at(config, row.target)
            compared += resolved is not None
            if resolved is not None and not same(value, resolved) and not is_said(row.target, spec, imported):
                other.append(f"{name}={value}, and {row.target} is {resolved}")
    if not ASYNCHRONOUS.search(text):  # their steps are counted in other numbers
        for field, value in expected(COMMENT.sub("", text), given):
            resolved = value_at(config, field)
            compared += 1
            if not same(value, resolved) and not is_said(field, spec, imported):
                other.append(f"{field} is {resolved}, and {value} follows from the script")
    return lost, other, compared


def is_said(field: str, spec: ExperimentSpec, imported: ImportedExperiment) -> bool:
    """True if a warning of the check names the field, or the report notes it or asks a person about one of its keys."""
    keys = {line.key.partition("=")[0] for line in imported.lines if field in line.text}
    asks = any(line.outcome == "needs a person" and line.key.partition("=")[0] in keys for line in imported.lines)
    noted = (line.text for line in imported.lines if line.text.endswith(")"))
    return asks or any(field in text for text in (*spec.warnings, *noted))


def outcome(file: Path) -> tuple[str, list[str], list[str], list[str], int]:
    """The outcome of one script, its reasons, its lost keys and its differing fields, and how many were compared."""
    try:
        imported = import_file(file)
    except ConfigErrors as errors:
        return "import refused", [str(error).split("\n")[0] for error in errors.errors], [], [], 0
    gaps = re.findall(r"(?m)^\s*(?:- )?([\w.]+: \?\?\?  # .*)", imported.text)
    if gaps:
        return "gaps", gaps, [], [], 0
    host = MACHINE if "\nmode: colocate" in imported.text else CLUSTER
    try:
        submission = load_text(imported.text, str(file), environ=ENVIRON, cwd=Path("/w"), host=host)
    except ConfigErrors as errors:
        return "check refused", [str(error).split("\n")[0] for error in errors.errors], [], [], 0
    return "passes", [], *differences(file.read_text(errors="replace"), imported, submission.spec)


def main() -> None:
    folder = Path(sys.argv[1])
    each = "--each" in sys.argv
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons: dict[str, Counter[str]] = defaultdict(Counter)
    lost_in: dict[str, list[str]] = {}
    other_in: dict[str, list[str]] = {}
    compared_fields = 0
    for file in sorted(folder.rglob("*.sh")):
        group = file.relative_to(folder).parts[0]
        result, why, lost, other, compared = outcome(file)
        compared_fields += compared
        kind = "main_ppo, main_dapo and the like" if RUNS.search(file.read_text(errors="replace")) else "other programs"
        counts[f"{group}: {kind}"][result] += 1
        counts[f"all: {kind}"][result] += 1
        for text in set(why):
            reasons[result][re.sub(r"\d+", "N", text)[:140]] += 1
        if lost:
            lost_in[str(file)] = lost
        if other:
            other_in[str(file)] = other
        if each:
            figures = {"lost_keys": len(lost), "differing_keys": len(other)}
            tell({"file": str(file), "outcome": result, "reasons": why, "lost": lost, "other": other, **figures})
    assert counts, f"no script is below {folder}"
    tell(
        {
            "outcomes": {group: dict(count) for group, count in sorted(counts.items())},
            "reasons": {result: dict(count.most_common(60)) for result, count in reasons.items()},
            "silent_losses": lost_in,
            "other_values": other_in,
            "compared_fields": compared_fields,
        }
    )


if __name__ == "__main__":
    main()

"""Named extensions: ours, third parties', and what is said about unknown ones."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic.daemon.third_party import install

from rftd.ops.errors import ConfigError
from rftd.ops.plugins import Plugins


def plugins() -> Plugins[Callable[[], object]]:
    return Plugins("thing", group="rftd.things", table={"ours": "fractions:Fraction", "gone": "no_such_module:X"})


def test_a_third_party_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    things = {"theirs": "third_things:Theirs", "ours": "third_things:Theirs", "broken": "third_things:Missing"}
    code = "class Theirs:\n    def __init__(self, size=1): self.size = size\n"
    install(tmp_path, "third_things", code, {"rftd.things": things})
    assert plugins().names() == ("ours", "gone")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = plugins()
    assert known.names() == ("ours", "gone", "broken", "theirs")
    assert vars(known.open("theirs", {"size": 3})) == {"size": 3}
    assert type(known.open("ours")).__name__ == "Fraction"
    assert known.builtin("ours")
    assert not known.builtin("theirs")
    with pytest.raises(ConfigError, match=r"thing 'broken' cannot be imported"):
        known.open("broken")
    with pytest.raises(ConfigError, match=r"(?s)'theirs' takes no argument 'sise'.*did you mean 'size'"):
        known.open("theirs", {"sise": 3})
    with pytest.raises(ConfigError, match=r"'ours' does not take its arguments \{'numerator': 'x'\}"):
        known.open("ours", {"numerator": "x"})


def test_entry_points_written_after_the_first_look_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Theirs: pass\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins().names() == ("ours", "gone")
    install(tmp_path, "late_things", code, {"rftd.things": {"theirs": "late_things:Theirs"}})
    assert plugins().names() == ("ours", "gone", "theirs")
    file = tmp_path / "late_things-0.dist-info" / "entry_points.txt"
    written_ns = file.stat().st_mtime_ns
    file.write_text("[rftd.things]\nrenamed = late_things:Theirs\n")
    os.utime(file, ns=(written_ns + 1, written_ns + 1))
    assert plugins().names() == ("ours", "gone", "renamed")
    shutil.rmtree(file.parent)
    assert plugins().names() == ("ours", "gone")


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"(?s)unknown thing 'our'; known: ours, gone.*did you mean 'ours'"):
        plugins().check("our")
    with pytest.raises(ConfigError, match=r"(?s)unknown thing 'os\.system'.*group 'rftd\.things'"):
        plugins().open("os.system")
    with pytest.raises(ConfigError, match="ModuleNotFoundError"):
        plugins().open("gone")

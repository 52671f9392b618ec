"""What installs says first what it does and how long it takes, and shows its progress on a terminal."""

from __future__ import annotations

import re
from pathlib import Path

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def recipes() -> dict[str, str]:
    """Each rule's commands, by its targets and prerequisites."""
    return {
        rule: commands
        for rule, commands in re.findall(r"^(\S[^\n]*:[^\n=]*)\n((?:\t.*\n)+)", MAKEFILE.read_text(), re.M)
    }


def test_whatever_installs_a_list_of_packages_says_so_and_shows_progress() -> None:
    installing = {rule: commands for rule, commands in recipes().items() if re.search(r"pip (sync|install)", commands)}
    assert len(installing) == 12, sorted(installing)
    for rule, commands in installing.items():
        assert commands.startswith('\t@echo "rftd: installing '), rule
        assert re.match(r".*(minute|minutes)", commands.partition("\n")[0]), rule
        for command in re.findall(r"uv pip (?:sync|install)[^\n]*", commands):
            if " -r " in command or " sync " in command:
                assert "$(QUIET)" in command, command

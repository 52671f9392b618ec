"""Tells whether releases that rftd pins have known vulnerabilities, as `pip-audit` finds them.

    make audit

It looks at the lock of the project and at that of the base install. A schedule runs the program itself, for `make` has
a status of its own. It exits with

    0    no pinned release is known to be vulnerable
    10   some are: the lines say which, and the releases that mend it
    1    nothing was learned: no index answers, or the answer cannot be read
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
LOCKS: Final = ("lock.txt", "base.txt")
FOUND: Final = 10
"""The exit status when a release is vulnerable: no error, and nobody else's status."""
LONGEST_S: Final = 600.0


class Vulnerable(NamedTuple):
    """A pinned release, and what is known of it."""

    name: str
    version: str
    vulnerability: str
    fixed_in: tuple[str, ...]

    def line(self) -> str:
        """One line for people."""
        fix = f"fixed in {', '.join(self.fixed_in)}" if self.fixed_in else "no release mends it yet"
        return f"{self.name} {self.version}: {self.vulnerability}, {fix}"


def read_answer(text: str) -> tuple[list[Vulnerable], list[str]]:
    """The vulnerable releases of an answer in JSON, and the packages that were skipped, each with the reason.

    Raises ValueError for what is no answer.
    """
    answer = json.loads(text)
    try:
        vulnerable = [
            Vulnerable(row["name"], row["version"], found["id"], tuple(found["fix_versions"]))
            for row in answer["dependencies"]
            for found in row.get("vulns", ())
        ]
        skipped = [f"{row['name']}: {row['skip_reason']}" for row in answer["dependencies"] if "skip_reason" in row]
        looked_at = len(answer["dependencies"]) - len(skipped)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no answer of pip-audit: {error!r}") from error
    if not looked_at:
        raise ValueError("pip-audit looked at no package")
    return vulnerable, skipped


def audited(lock: Path) -> tuple[list[Vulnerable], list[str]]:
    """See `read_answer`. Ends the program if nothing was learned."""
    command = [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off"]
    # The lock is whole and has the hashes of all: nothing is resolved, and nothing installed.
    command += ["--disable-pip", "--require-hashes", "--requirement", str(lock)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
        return read_answer(done.stdout)
    except subprocess.TimeoutExpired:
        sys.exit(f"{lock.name}: pip-audit did not answer within {LONGEST_S:g} s")
    except ValueError as error:
        sys.exit(f"{lock.name}: nothing was learned: {error}\n{done.stderr}")


def main() -> None:
    """Prints each vulnerable release once, and exits with the status that says whether there are any."""
    vulnerable: dict[Vulnerable, list[str]] = {}
    left_out: dict[str, None] = {}
    for name in LOCKS:
        found, skipped = audited(ROOT / "requirements" / name)
        for each in found:
            vulnerable.setdefault(each, []).append(name)
        left_out |= dict.fromkeys(skipped)
    for reason in left_out:
        sys.stdout.write(f"not looked at: {reason}\n")
    for each, locks in sorted(vulnerable.items()):
        sys.stdout.write(f"{each.line()} ({', '.join(locks)})\n")
    sys.stdout.write("" if vulnerable else "no pinned release is known to be vulnerable\n")
    sys.exit(FOUND if vulnerable else 0)


if __name__ == "__main__":
    main()

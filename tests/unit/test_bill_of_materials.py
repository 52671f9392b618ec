"""The wheel carries a bill of materials: every package of the base lock, with its release and digests (PEP 770)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def test_the_wheel_names_what_the_base_lock_pins(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=240)
    (file,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(file) as wheel:
        (name,) = (name for name in wheel.namelist() if ".dist-info/sboms/" in name)
        bill = json.loads(wheel.read(name))
        assert wheel.read("rftd/__init__.py") == (ROOT / "package" / "__init__.py").read_bytes()
        assert "rftd/py.typed" in wheel.namelist()
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "rftd")
    lock = (ROOT / "requirements" / "base.txt").read_text()
    rows = [Requirement(row) for row in re.findall(r"^([A-Za-z0-9][^\\\n]*?) *\\?$", lock, re.MULTILINE)]
    pinned = {(canonicalize_name(row.name), str(row.specifier).removeprefix("==")) for row in rows}
    assert pinned
    assert {(canonicalize_name(part["name"]), part["version"]) for part in bill["components"]} == pinned
    assert all("sha256" in part["description"] or part.get("externalReferences") for part in bill["components"])
    assert not re.search(r"file:|localhost|127\.0\.0\.1", json.dumps(bill))

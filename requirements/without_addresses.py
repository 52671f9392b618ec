"""The bill of materials without addresses of a package index: a mirror has the same files under others.

The hashes of each release stay, at its component. Run: python requirements/without_addresses.py FILE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: Path) -> None:
    """Rewrites the file."""
    bill = json.loads(path.read_text(encoding="utf-8"))
    for tool in bill["metadata"].get("tools", {}).get("components", []):
        tool.pop("externalReferences", None)
    for component in bill["components"]:
        references = component.pop("externalReferences", [])
        hashes = [entry for reference in references for entry in reference.get("hashes", [])]
        if hashes:
            component["hashes"] = hashes
    path.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Writes the dashboards of `ops/grafana` and the rules of `ops/prometheus` from `tests/synthetic/dashboards`.

`.venv/bin/python -P tests/golden/make_dashboards.py`, after a change of either; a test says when a file is out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from synthetic.dashboards.files import texts


def main() -> None:
    """Writes the files."""
    for path, text in texts().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

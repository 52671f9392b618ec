"""Writes the document of the API as it is served: python tests/golden/make_openapi.py. A change concerns clients."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from synthetic.daemon.daemon_parts import open_daemon  # noqa: E402


async def document() -> str:
    """The document of a daemon over a small history, with sorted keys."""
    with tempfile.TemporaryDirectory() as folder:
        async with open_daemon(Path(folder)) as parts, parts.client() as client:
            return json.dumps((await client.get("/openapi.json")).json(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    (HERE / "openapi.json").write_text(asyncio.run(document()), encoding="utf-8")

"""One experiment file's content laid over another's."""

from __future__ import annotations

from typing import Any


def overlaid(below: Any, above: Any) -> Any:
    """The first with what the second says instead, section by section; a list takes the place of another."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: overlaid(below.get(key), value) for key, value in above.items()}}
    return above

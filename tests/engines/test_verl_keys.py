"""The table of veRL's keys, held against the configuration of the installed verl."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from rftd.daemon.config.verl.table import find, meant

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")


def leaves(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if key.startswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


def test_every_key_of_verl_is_known_with_its_type_and_default() -> None:
    spec = find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml"
    keys = dict(leaves(yaml.safe_load(file.read_text())))
    assert len(keys) > 500
    assert [name for name in keys if find(name) is None] == []
    assert [(name, meant(name)) for name in keys if meant(name)] == []
    for name, value in keys.items():
        row = find(name)
        assert row is not None
        if row.name != name or (isinstance(value, str) and "${" in value):
            continue
        assert row.wrong(value) is None, name
        # `???` is a value that the user has to give; null stands for false where a key has moved to another section.
        if row.default is not None and value not in ("???", None):
            assert value == row.default, name

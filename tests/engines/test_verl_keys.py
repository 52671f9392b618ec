"""The table of veRL's keys, held against the configuration of the installed verl."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from synthetic.models.verl_tables import text_of

from rftd.daemon.config.verl.importing import import_file
from rftd.daemon.config.verl.table import FILE, find, meant

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")


def leaves(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if key.startswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield above + key, value


@pytest.fixture
def folder() -> Path:
    """The configurations that verl ships."""
    spec = find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "trainer" / "config"


def test_every_key_of_verl_is_known_with_its_type_and_default(folder: Path) -> None:
    keys = dict(leaves(yaml.safe_load((folder / "_generated_ppo_trainer.yaml").read_text())))
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


@pytest.mark.parametrize("engine", ["megatron", "veomni", "torchtitan"])
def test_every_key_of_verls_other_engines_is_known(folder: Path, engine: str) -> None:
    keys = dict(leaves(yaml.safe_load((folder / f"_generated_ppo_{engine}_trainer.yaml").read_text())))
    assert len(keys) > 500
    assert [name for name in keys if find(name) is None or meant(name)] == []


def test_what_verl_has_by_default_asks_a_person_for_what_it_leaves_open_alone(folder: Path) -> None:
    given = ["data.train_files=d/train.parquet", "actor_rollout_ref.model.path=/m", "actor_rollout_ref.rollout.n=4"]
    lines = import_file(folder / "_generated_ppo_trainer.yaml", given).lines
    asking = {line.key.partition("=")[0] for line in lines if line.outcome == "needs a person"}
    assert asking <= {"data_source", "data.image_key", "explorer.rollout_model.engine_num"}


def test_the_tables_are_those_of_the_installed_release() -> None:
    spec = find_spec("verl")
    assert spec is not None
    assert spec.origin is not None
    assert text_of(Path(spec.origin).parent) == FILE.read_text()

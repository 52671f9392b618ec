"""The JSON Schema takes what the loader takes, and refuses what it refuses; it is made of the same models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import pytest
from click.testing import CliRunner
from synthetic.daemon.config_fields import schema_fields, with_field

from rftd.daemon.cli.verbs.config import config_group
from rftd.daemon.config.effective.experiment import effective_config
from rftd.daemon.config.json_schema import json_schema
from rftd.daemon.config.loading import load_file
from rftd.daemon.config.yaml_source import parse_yaml

ROOT: Final = Path(__file__).parents[4]
FILES: Final = sorted([*(ROOT / "examples").glob("*.yaml"), ROOT / "tests" / "golden" / "config" / "guide.yaml"])
ENVIRON: Final = {"MODEL_PATH": "/m", "TRINITY_TASKSET_PATH": "/t", "TRINITY_SFT_DATASET_PATH": "/a"}
VALIDATOR: Final = jsonschema_rs.Draft202012Validator(json_schema())


def _wrong(tree: Any) -> list[str]:
    return [f"{list(error.instance_path)}: {error.message}" for error in VALIDATOR.iter_errors(tree)]


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_files_are_valid_as_they_are_sent_and_as_they_are_shown(file: Path) -> None:
    environ = {**ENVIRON, "TRINITY_DATASET_PATH": "/d"}
    loaded = load_file(file, overrides=["data_processor={}"], environ=environ, cwd=Path("/home/user"))
    assert _wrong(loaded.config) == []
    assert _wrong(effective_config(loaded.spec)) == []


def test_an_example_is_valid_as_it_is_written() -> None:
    written, _, _ = parse_yaml((ROOT / "examples" / "demo.yaml").read_text(), "demo.yaml")
    assert _wrong(written) == []
    assert _wrong(with_field(written, ("buffer", "batch_size"), "${oc.env:BATCH,4}")) == []
    assert _wrong(with_field(written, ("explorer",), None)) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batchsize", 3),
        ("batch_size", 0),
        ("batch_size", "four"),
        ("total_steps", 1.5),
        ("trainer_input", {"experience_buffer": {"schema_type": "rows"}}),
        ("explorer_input", {"taskset": {"rollout_args": {"top_p": 1.5}}}),
    ],
)
def test_what_the_loader_refuses_is_invalid(field: str, value: Any) -> None:
    assert _wrong({"buffer": {field: value}}) != []


def test_kinds_of_policies_have_fields_of_their_own() -> None:
    assert _wrong({"policy": {"kind": "areal", "max_staleness": 3}}) == []
    assert _wrong({"policy": {"kind": "areal", "no_such": 3}}) != []
    assert _wrong({"policy": {"kind": "no_such"}}) != []


def test_every_field_says_its_effect_and_its_unit() -> None:
    schema = json.loads(CliRunner().invoke(config_group, ["schema"]).stdout)
    assert schema == json_schema()
    for field in schema_fields():
        # The sections of policies and corrections are in `$defs` under the names of their classes.
        at = schema["$defs"].get(field.section.__name__, schema)
        shown = at["properties"][field.name]
        idle = field.mark.effect in ("harmless", "refused") and "mark" in (field.info.json_schema_extra or {})
        assert shown.get("deprecated", False) == idle, field.path
        if field.mark.effect != "acts" and "mark" in (field.info.json_schema_extra or {}) and field.mark.why:
            assert field.mark.why in shown["description"], field.path
    timeout = schema["$defs"]["Synchronizer"]["properties"]["sync_timeout"]
    assert timeout["description"].startswith("Maximum wait")
    assert timeout["description"].endswith("In s. Upstream: The guide shows 1200.")
    assert timeout["anyOf"][0] == {"type": "number", "exclusiveMinimum": 0, "maximum": 1000000000}

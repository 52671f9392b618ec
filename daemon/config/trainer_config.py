"""`trainer.trainer_config_path`, the older spelling of an inline `trainer_config`: read by the client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.interpolation import resolve_interpolations
from rftd.daemon.config.issue import ConfigErrors, Contradiction, Issue
from rftd.daemon.config.yaml_source import parse_yaml
from rftd.ops import limits

_PATH: FieldPath = ("trainer", "trainer_config_path")


def inline_trainer_config(tree: dict[str, Any], cwd: Path, environ: Mapping[str, str]) -> list[Issue]:
    """Puts the file's content into `trainer.trainer_config`; an empty path is dropped."""
    trainer = tree.get("trainer")
    if not isinstance(trainer, dict) or "trainer_config_path" not in trainer:
        return []
    given = trainer["trainer_config_path"]
    if given is None or given == "":
        del trainer["trainer_config_path"]
        return []
    if not isinstance(given, str) or "${" in given:
        return []  # the schema names the type; a path is written out
    if trainer.get("trainer_config"):
        fix = "keep trainer_config only"
        return [Issue(_PATH, "trainer_config is given as well", fix, Contradiction)]
    try:
        with (cwd / given).expanduser().open("rb") as file:
            text = file.read(limits.CONFIG_SIZE_BYTES + 1).decode()
        content, source, issues = parse_yaml(text, given)
    except (OSError, ValueError) as error:
        return [Issue(_PATH, f"cannot be read: {error}", "check the path, or write trainer_config inline")]
    except ConfigErrors as error:
        return [Issue(_PATH, f"{error.errors[0].what} ({error.errors[0].where})", "correct that file")]
    if not isinstance(content, dict) or issues:
        return [Issue(_PATH, "the file is not a mapping, or has a key twice", "correct that file")]
    content, unresolved, _ = resolve_interpolations(content, source, environ)
    if unresolved:
        return [Issue(_PATH, f"in the file: {issue.what}", issue.fix) for issue in unresolved]
    del trainer["trainer_config_path"]
    trainer["trainer_config"] = content
    return []

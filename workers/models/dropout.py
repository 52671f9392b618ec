"""Dropout of a model's configuration: 0 while it trains or generates, and in its saved folder what the base has.

On-policy training compares log-probabilities of two forward passes of the same weights. A layer that drops units out or
skips itself (LayerDrop) gives other numbers each time. Evaluation mode is not enough: layers that are computed again in
the backward pass have to be in training mode, and many pass `training=self.training` themselves.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

_CONFIG: Final = "config.json"
_RANDOM: Final = re.compile(r"dropout|layerdrop|pdrop|drop_path|drop_rate")
"""Settings of transformers' configurations that are probabilities in training mode, and nothing else in any mode.

`router_jitter_noise` is none: phimoe's routing depends on it in evaluation mode, too.
"""


def without_dropout(config: Any) -> Any:
    """Sets every dropout probability of a transformers configuration and of those within it to 0; returns it."""
    _apply(config, dropout_off(config))
    return config


def dropout_off(config: Any) -> dict[str, Any]:
    """The settings that turn a configuration's dropout off: 0 for each, in a mapping for each configuration within."""
    from transformers import PretrainedConfig

    off: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PretrainedConfig):
            if inner := dropout_off(value):
                off[name] = inner
        elif _is_dropout(name) and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            off[name] = 0.0
    return off


def restore_dropout(folder: Path, base: Path) -> None:
    """Gives the config.json of a saved folder the dropout settings that the base folder's has, and no others."""
    try:
        original = json.loads((base / _CONFIG).read_bytes())
        saved = json.loads((folder / _CONFIG).read_bytes())
    except FileNotFoundError:
        return
    restored = _restored(saved, original)
    if restored != saved:
        # As transformers writes it: two spaces, sorted names, a newline at the end.
        (folder / _CONFIG).write_text(json.dumps(restored, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _restored(saved: dict[str, Any], original: dict[str, Any]) -> dict[str, Any]:
    restored = {name: value for name, value in saved.items() if not _is_dropout(name)}
    restored |= {name: value for name, value in original.items() if _is_dropout(name)}
    for name, inner in restored.items():
        if isinstance(inner, dict) and isinstance(original.get(name), dict):
            restored[name] = _restored(inner, original[name])
    return restored


def _is_dropout(name: str) -> bool:
    return _RANDOM.search(name) is not None


def _apply(config: Any, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        if isinstance(value, dict):
            _apply(getattr(config, name), value)
        else:
            setattr(config, name, value)

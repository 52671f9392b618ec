"""`model.lora_configs` as one adapter."""

from __future__ import annotations

from typing import Any, Final

from rftd.daemon.config.issue import Contradiction, WrongValue
from rftd.daemon.config.resolve.notes import Notes
from rftd.daemon.config.schema.model import Lora, Model
from rftd.streams.spec import LoraSpec

_AT: Final = ("model", "lora_configs")


def resolve_lora(given: Model, notes: Notes) -> LoraSpec | None:
    """The adapter that is trained, or None."""
    entries = given.lora_configs or []
    if not entries:
        return None
    if len(entries) > 1:
        what = f"names {len(entries)} adapters, and a run trains one"
        notes.wrong(_AT, what, f"keep {entries[0].name!r} alone, and submit a run for each other", Contradiction)
    entry = entries[0]
    if entry.base_model_name not in (None, given.model_path):
        notes.warn("model.lora_configs: base_model_name has no effect: the adapter belongs to model.model_path")
    if entry.lora_dtype not in ("auto", "float32"):
        notes.warn(f"model.lora_configs: lora_dtype {entry.lora_dtype} has no effect: adapters are trained in float32")
    return LoraSpec(
        name=entry.name,
        path=entry.path or "",
        rank=entry.lora_rank,
        alpha=entry.lora_alpha,
        target_modules=_modules(entry, "target_modules", notes) or ("all-linear",),
        exclude_modules=_modules(entry, "exclude_modules", notes),
    )


def _modules(entry: Lora, field: str, notes: Notes) -> tuple[str, ...]:
    given: Any = getattr(entry, field)
    if given is None:
        return ()
    names = [given] if isinstance(given, str) else given
    if isinstance(names, list) and all(isinstance(name, str) and name for name in names):
        return tuple(names)
    notes.wrong(
        (*_AT, "0", field), f"{given!r} is no list of module names", "write [q_proj, v_proj] or all-linear", WrongValue
    )
    return ()

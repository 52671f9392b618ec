"""The table of corrections, importable without importing any correction."""

from __future__ import annotations

from typing import Final

from rftd.ops.plugins import Plugins
from rftd.workers.learning.corrections.correction import Correction

_PACKAGE: Final = "rftd.workers.learning.corrections"
"""Package of the built-in corrections."""

CORRECTIONS: Final = Plugins[Correction](
    "correction",
    group="rftd.corrections",
    table={
        "decoupled": f"{_PACKAGE}.importance:decoupled",
        "tis": f"{_PACKAGE}.importance:tis",
        "icepop": f"{_PACKAGE}.importance:icepop",
        "token": f"{_PACKAGE}.rejection:token",
        "sequence": f"{_PACKAGE}.rejection:sequence",
        "geometric": f"{_PACKAGE}.rejection:geometric",
        "k2": f"{_PACKAGE}.rejection:k2",
        "k3": f"{_PACKAGE}.rejection:k3",
        "kpop": f"{_PACKAGE}.rejection:KPop",
        "m2po": f"{_PACKAGE}.rejection:M2po",
        "opsm": f"{_PACKAGE}.rejection:Opsm",
    },
)
"""Corrections by name: built-in ones, and plug-ins of the entry-point group `rftd.corrections`."""

"""The table of corrections, importable without importing any correction."""

from __future__ import annotations

from typing import Final

from rftd.ops.plugins import Plugins
from rftd.workers.learning.corrections.correction import Correction

_HERE: Final = "rftd.workers.learning.corrections"

CORRECTIONS: Final = Plugins[Correction](
    "correction",
    group="rftd.corrections",
    table={
        "decoupled": f"{_HERE}.importance:decoupled",
        "tis": f"{_HERE}.importance:tis",
        "icepop": f"{_HERE}.importance:icepop",
        "token": f"{_HERE}.rejection:token",
        "sequence": f"{_HERE}.rejection:sequence",
        "geometric": f"{_HERE}.rejection:geometric",
        "k2": f"{_HERE}.rejection:k2",
        "k3": f"{_HERE}.rejection:k3",
        "kpop": f"{_HERE}.rejection:KPop",
        "m2po": f"{_HERE}.rejection:M2po",
        "opsm": f"{_HERE}.rejection:Opsm",
    },
)

"""`engine_args` of the Tinker trainer engine, what it cannot give, and how it is made; known without the package."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from rftd.ops.extras import TORCH
from rftd.workers.engines.tinker.access import Access
from rftd.workers.learning.engine_definition import TrainerEngineDefinition, TrainerOpening
from rftd.workers.learning.losses.demands import Part

if TYPE_CHECKING:
    from rftd.workers.engines.tinker.service import AdapterShape
    from rftd.workers.learning.engine import TrainerEngine


class TinkerTrainerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of `model.tinker` that concern training."""

    base_model: str = ""
    """The model's name at the service."""
    rank: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    seed: int | None = None
    """The seed of the adapter's first numbers; None: the service's own choice."""
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True
    base_url: str = ""
    """The service's address; empty: its own."""

    @property
    def shape(self) -> AdapterShape:
        """The adapter."""
        from rftd.workers.engines.tinker.service import (
            AdapterShape,  # brings arrays, which a check of a file needs none of
        )

        return AdapterShape(
            rank=self.rank,
            seed=self.seed,
            train_mlp=self.train_mlp,
            train_attn=self.train_attn,
            train_unembed=self.train_unembed,
        )


LACKS: Final[Mapping[Part, str]] = {
    "entropies": "the service tells the log-probability of each token, and not of the others that might have come",
    "critic": "the service trains language models alone",
    "teacher": "the service trains one adapter, and keeps no other model beside it",
    "temperatures": "the service computes at temperature 1",
}
OPTIMIZERS: Final = ("adam", "adamw")
"""Its own is AdamW."""


def _make(opening: TrainerOpening[TinkerTrainerArgs]) -> TrainerEngine:
    from rftd.workers.engines.tinker.sdk import connect
    from rftd.workers.engines.tinker.trainer.engine import TinkerTrainerEngine

    base_url = opening.arguments.base_url
    return TinkerTrainerEngine(opening.arguments, lambda: connect(Access.of(base_url, os.environ, opening.reach)))


ENGINE: Final = TrainerEngineDefinition(
    arguments=TinkerTrainerArgs,
    make=_make,
    extra=TORCH,
    opened_with=TinkerTrainerArgs.__struct_fields__,
    lacks=LACKS,
)

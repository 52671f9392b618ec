"""`engine_args` of the Tinker trainer engine, and what it cannot give; known without the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from rftd.workers.learning.losses.demands import Part

if TYPE_CHECKING:
    from rftd.workers.engines.tinker.service import AdapterShape


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

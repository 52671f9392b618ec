"""`engine_args` of the Tinker trainer engine, and unsupported parts of objectives; importable without the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from rftd.workers.learning.losses.demands import Part

if TYPE_CHECKING:
    from rftd.workers.engines.tinker.service import AdapterShape


class TinkerTrainerArgs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of `model.tinker` for training."""

    base_model: str = ""
    """Name of the model at the service."""
    rank: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    """Rank of the adapter's matrices."""
    seed: int | None = None
    """Seed of the adapter's initial numbers; None: chosen by the service."""
    train_mlp: bool = True
    """True: feed-forward layers are adapted."""
    train_attn: bool = True
    """True: attention layers are adapted."""
    train_unembed: bool = True
    """True: the output layer is adapted."""
    base_url: str = ""
    """Address of the service; empty: the default address."""

    @property
    def shape(self) -> AdapterShape:
        """Shape of the adapter: rank, seed, and the adapted kinds of layers."""
        from rftd.workers.engines.tinker.service import (
            AdapterShape,  # imports numpy, which a check of a file does not need
        )

        return AdapterShape(
            rank=self.rank,
            seed=self.seed,
            train_mlp=self.train_mlp,
            train_attn=self.train_attn,
            train_unembed=self.train_unembed,
        )


LACKS: Final[Mapping[Part, str]] = {
    "entropies": "the service returns the log-probability of each token, not those of its alternatives",
    "critic": "the service trains language models only",
    "teacher": "the service trains one adapter, without another model beside it",
    "temperatures": "the service computes at temperature 1",
}
"""Parts of objectives that the service cannot compute, with the reason."""
OPTIMIZERS: Final = ("adam", "adamw")
"""Accepted names of the service's AdamW."""

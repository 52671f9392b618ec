"""Section `policy`, rftd's own: how far explorers run ahead, and what may be trained on. One class for each kind."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from rftd.daemon.config.schema.section import Args, Count, Natural, Section


class AnyPolicy(Section):
    """What every kind has."""

    max_staleness: Natural | None = None
    """In weight versions; none: as small as the synchronizer allows."""
    min_group_members: Count | None = None
    """A group with fewer is retired; none: 2, or 1 where a group is one rollout."""


class HardBoundPolicy(AnyPolicy):
    """Admission by capacity, and a sweep at consumption."""

    kind: Literal["hard_bound"]
    abort_inflight: bool = False
    wait: bool = False
    """Form no batch while a group is under way that would be too old for the one after it."""


class InOrderPolicy(AnyPolicy):
    """The same in the order of the dataset: what `deterministic` takes."""

    kind: Literal["in_order"]


class ArealPolicy(AnyPolicy):
    """AReaL's capacity, and no sweep."""

    kind: Literal["areal"]
    max_concurrent: Natural = 0
    """Rollouts under way; 0: as many as explorers have places."""


class VerlWindowPolicy(AnyPolicy):
    """verl's window between two synchronisations."""

    kind: Literal["verl_window"]
    staleness_threshold: Annotated[float, Field(ge=0, le=1000)] = 0.5


class WindowedPolicy(AnyPolicy):
    """NeMo-RL's window of versions."""

    kind: Literal["windowed"]
    freshest_first: bool = False
    abort_inflight: bool = True


class WeightFifoPolicy(AnyPolicy):
    """NeMo-RL's: the oldest version within the bound first."""

    kind: Literal["weight_fifo"]
    abort_inflight: bool = False
    wait: bool = False
    """As of `hard_bound`; here nothing is dropped then."""


class ReadyFirstPolicy(AnyPolicy):
    """NeMo-RL's: a gate at dispatch, then whatever is ready."""

    kind: Literal["ready_first"]


class SampleLagPolicy(AnyPolicy):
    """PipelineRL's lag in samples."""

    kind: Literal["sample_lag"]
    max_lag_samples: Natural = 0
    """0: one batch."""


class PluginPolicy(AnyPolicy):
    """A third party's, by the name of its entry point in the group `rftd.policies`."""

    kind: Literal["plugin"]
    name: str
    args: Args = {}


POLICY_KINDS: Final[dict[str, type[AnyPolicy]]] = {
    "hard_bound": HardBoundPolicy,
    "in_order": InOrderPolicy,
    "areal": ArealPolicy,
    "verl_window": VerlWindowPolicy,
    "windowed": WindowedPolicy,
    "weight_fifo": WeightFifoPolicy,
    "ready_first": ReadyFirstPolicy,
    "sample_lag": SampleLagPolicy,
    "plugin": PluginPolicy,
}


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


# Not by the field itself: sections read their fields before they validate them.
Policy: TypeAlias = Annotated[
    Annotated[HardBoundPolicy, Tag("hard_bound")]
    | Annotated[InOrderPolicy, Tag("in_order")]
    | Annotated[ArealPolicy, Tag("areal")]
    | Annotated[VerlWindowPolicy, Tag("verl_window")]
    | Annotated[WindowedPolicy, Tag("windowed")]
    | Annotated[WeightFifoPolicy, Tag("weight_fifo")]
    | Annotated[ReadyFirstPolicy, Tag("ready_first")]
    | Annotated[SampleLagPolicy, Tag("sample_lag")]
    | Annotated[PluginPolicy, Tag("plugin")],
    Discriminator(_kind),
]
"""Told apart by `kind`."""

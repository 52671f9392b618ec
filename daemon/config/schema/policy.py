"""Section `policy`, rftd's own: how far explorers run ahead, and what may be trained on. One class for each kind.

The fields of a kind of ours are the arguments that its policy declares (`workers/control/policies`), with their
defaults and bounds: nothing is written here when a policy is added.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast, get_args, get_origin

import msgspec
from pydantic import Discriminator, Field, Tag, create_model

from rftd.daemon.config.schema.section import Args, Count, Natural, Section
from rftd.streams.spec import SyncSpec
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.registry import BUILT_IN, built_in

_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
"""Bounds that msgspec and pydantic call by the same names."""


class AnyPolicy(Section):
    """The fields that every kind has."""

    max_staleness: Natural | None = None
    """The bound in weight versions; none: as small as the synchronizer allows."""
    min_group_members: Count | None = None
    """A group with fewer is retired; none: 2, or 1 where a group is one rollout."""
    kind: str


class PluginPolicy(AnyPolicy):
    """A third party's, by the name of its entry point in the group `rftd.policies`."""

    kind: Literal["plugin"]
    name: str
    args: Args = {}


def fields_of(policy: type[Paced]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The arguments that the experiment file has a field for: all but those that follow from the schedule."""
    scheduled = policy.scheduled(SyncSpec())
    return tuple(each for each in msgspec.structs.fields(policy.arguments) if each.name not in scheduled)


def section_of(kind: str, policy: type[Paced]) -> type[AnyPolicy]:
    """The section of one kind, made of the arguments that its policy declares."""
    fields: dict[str, Any] = {each.name: _field(each) for each in fields_of(policy)}
    # The tag is the registry's name, so that a class may serve two kinds.
    fields["kind"] = (Literal[kind], ...)
    return cast(
        type[AnyPolicy], create_model(f"{policy.__name__}Policy", __base__=AnyPolicy, __doc__=policy.__doc__, **fields)
    )


def _field(argument: msgspec.structs.FieldInfo) -> tuple[Any, Any]:
    """Type and default of a field, as pydantic takes them."""
    kind = argument.type
    bounds: dict[str, Any] = {}
    if get_origin(kind) is Annotated:
        kind, *marks = get_args(kind)
        metas = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
        bounds = {name: bound for meta in metas for name in _BOUNDS if (bound := getattr(meta, name)) is not None}
    # pydantic's `...` is a field that must be given.
    default = ... if argument.default is msgspec.NODEFAULT else argument.default
    return kind, Field(default=default, **bounds)


POLICY_KINDS: Final[dict[str, type[AnyPolicy]]] = {
    **{kind: section_of(kind, policy) for kind in BUILT_IN if (policy := built_in(kind)) is not None},
    "plugin": PluginPolicy,
}


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


if TYPE_CHECKING:
    Policy: TypeAlias = AnyPolicy
else:
    # By a function and not by the field itself: sections read their fields before they validate them.
    Policy = Annotated[
        reduce(or_, (Annotated[each, Tag(kind)] for kind, each in POLICY_KINDS.items())), Discriminator(_kind)
    ]

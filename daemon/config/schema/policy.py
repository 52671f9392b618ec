"""Section `policy`, rftd only: how far explorers run ahead, and what may be trained on. One class for each kind.

The fields of a kind of ours are the arguments that its policy declares (`workers/control/policies`), with their
defaults and bounds: nothing is written here when a policy is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec
from pydantic import create_model

from rftd.daemon.config.schema.section import Args, Count, Natural, Section, any_of, argument_field
from rftd.streams.spec.declaration import ARGUMENTS, PLUGIN
from rftd.streams.spec.synchronizer import Synchronizer
from rftd.workers.control.policies.paced import Paced
from rftd.workers.control.policies.registry import BUILT_IN, built_in


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
    name: Annotated[str, PLUGIN]
    """The name of the entry point."""
    args: Annotated[Args, ARGUMENTS] = {}
    """Arguments that the policy is made with."""


def fields_of(policy: type[Paced]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The arguments that the experiment file has a field for: all but those that follow from the schedule."""
    scheduled = policy.scheduled(Synchronizer(sync_method="checkpoint"))
    return tuple(each for each in msgspec.structs.fields(policy.arguments) if each.name not in scheduled)


def section_of(kind: str, policy: type[Paced]) -> type[AnyPolicy]:
    """The section of one kind, made of the arguments that its policy declares."""
    fields: dict[str, Any] = {
        each.name: argument_field(each.type, ... if each.default is msgspec.NODEFAULT else each.default)
        for each in fields_of(policy)
    }
    # The tag is the registry's name, so that a class may serve two kinds.
    fields["kind"] = (Literal[kind], ...)
    return cast(
        type[AnyPolicy], create_model(f"{policy.__name__}Policy", __base__=AnyPolicy, __doc__=policy.__doc__, **fields)
    )


POLICY_KINDS: Final[dict[str, type[AnyPolicy]]] = {
    **{kind: section_of(kind, policy) for kind in BUILT_IN if (policy := built_in(kind)) is not None},
    "plugin": PluginPolicy,
}


if TYPE_CHECKING:
    Policy: TypeAlias = AnyPolicy
else:
    Policy = any_of(POLICY_KINDS)

"""Derived ids are UUIDv5 of a fixed namespace: every log that exists was written with them."""

from __future__ import annotations

from uuid import UUID, uuid5

from rftd.ops.ids import NAMESPACE, derive, derive_each, derive_from_each


def test_ids_that_are_derived_at_once_are_those_derived_one_by_one() -> None:
    cause = UUID(int=2**127 + 3)
    found = derive_each(cause, "rollout", 7, numbers=range(12))
    assert found == [derive(cause, "rollout", 7, number) for number in range(12)]
    assert derive_from_each(found, "request", 3) == [derive(each, "request", 3) for each in found]


def test_a_derived_id_is_the_uuid5_of_its_parts() -> None:
    cause = UUID("0190a3b2-7c1d-7e2f-8a3b-4c5d6e7f8091")
    for number in range(200):
        assert derive(cause, "rollout", number) == uuid5(NAMESPACE, f"{cause.hex}/rollout/{number}")
    assert str(derive(cause, "experience")) == str(uuid5(NAMESPACE, f"{cause.hex}/experience"))
    assert derive(cause, "experience").version == 5

"""`Newest` forgets the oldest entry, and no other."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from rftd.streams.log.newest import Newest


@given(most=st.integers(1, 5), entries=st.lists(st.tuples(st.integers(0, 8), st.integers()), max_size=40))
def test_it_holds_what_an_ordered_mapping_of_that_length_holds(most: int, entries: list[tuple[int, int]]) -> None:
    newest: Newest[int, int] = Newest(most)
    model: OrderedDict[int, int] = OrderedDict()
    for key, value in entries:
        newest.put(key, value)
        model[key] = value
        if len(model) > most:
            model.popitem(last=False)
        assert {each: newest.get(each) for each in range(9) if each in newest} == dict(model)


def test_a_key_that_is_put_again_keeps_its_age_and_one_that_went_begins_anew() -> None:
    newest: Newest[str, int] = Newest(2)
    for key, value in (("a", 1), ("b", 2), ("a", 3), ("c", 4)):
        newest.put(key, value)
    assert (newest.get("a"), newest.get("b"), newest.get("c")) == (None, 2, 4)
    newest.put("a", 5)
    assert ("b" in newest, newest.get("a")) == (False, 5)

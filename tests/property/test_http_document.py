"""Every operation of the API answers what its document says, to what it allows and to what it forbids.

The long version is tests/property/torture_http.py.
"""

from __future__ import annotations

import pytest
from synthetic.daemon.http_probe import probed


@pytest.mark.slow
@pytest.mark.parametrize("role", ["owner", "read"])
def test_answers_are_what_the_document_says(role: str) -> None:
    found = probed(seed=None, examples=2, phases=["fuzzing"], role=role)
    assert found.failures == {}
    assert found.requests > 60

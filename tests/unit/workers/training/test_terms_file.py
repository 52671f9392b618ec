"""The file of a step's terms: one experience is read without the others, and a damaged file is none."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from rftd.ops import limits
from rftd.ops.errors import DataError
from rftd.workers.training.terms_file import StepTerms, read_terms, write_terms

FIRST, SECOND, ABSENT = (UUID(int=number) for number in (1, 2, 3))


def step_terms() -> StepTerms:
    column = np.array([1.5, np.nan, -2.0], np.float32)
    experiences = {str(FIRST): {"kl": column, "ratio": column + 1}, str(SECOND): {}}
    return StepTerms(step=4, from_version=3, equal=True, notes=("note",), experiences=experiences)


def test_columns_come_back_by_experience(tmp_path: Path) -> None:
    path = tmp_path / "terms" / "4.terms"
    write_terms(path, step_terms())
    terms = read_terms(path, FIRST)
    assert terms is not None
    assert (terms.header.step, terms.header.notes) == (4, ("note",))
    np.testing.assert_array_equal(terms.columns["ratio"], np.array([2.5, np.nan, -1.0], np.float32))
    for experience in (SECOND, ABSENT):
        terms = read_terms(path, experience)
        assert terms is not None
        assert terms.columns == {}
    assert [file.name for file in path.parent.iterdir()] == ["4.terms"]


def test_a_file_cut_off_anywhere_or_of_another_form_is_none(tmp_path: Path) -> None:
    path = tmp_path / "4.terms"
    write_terms(path, step_terms())
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        assert read_terms(path, FIRST) is None, size
    path.write_bytes(b"other" + content)
    assert read_terms(path, FIRST) is None
    assert read_terms(tmp_path / "absent", FIRST) is None


def test_more_numbers_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEP_TERMS_SIZE_BYTES", 8)
    with pytest.raises(DataError, match="6 numbers"):
        write_terms(tmp_path / "4.terms", step_terms())
    assert list(tmp_path.iterdir()) == []

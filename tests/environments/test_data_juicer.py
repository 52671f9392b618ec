"""The real Data-Juicer, in a Python of its own, by the same client: `make test-data-juicer`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rftd.ops.errors import PipelineError
from rftd.streams.spec.task_pipeline import JuicerSpec
from rftd.workers.pipelines.juicer_service import JuicerService, figures_of

HOME = Path(__file__).parents[2] / "build" / "data-juicer"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not (HOME / ".ready").exists(), reason="`make test-data-juicer` installs the package"),
]


@pytest.fixture
def service() -> Iterator[JuicerService]:
    spec = JuicerSpec(auto_start=True, python=str(HOME / "bin" / "python"), release="1.6.1")
    operators = [{"text_length_filter": {"min_len": 5}}, {"alphanumeric_filter": {"min_ratio": 0.5}}]
    service = JuicerService(spec, operators, processes=1, environ=os.environ)
    yield service
    service.close()


def test_its_filters_keep_rows_and_tell_their_figures(service: JuicerService) -> None:
    rows = [{"text": text, "row": row} for row, text in enumerate(("hello world", "hi", "?!?!?! !!", "some long text"))]
    kept, _ = service.process(rows)
    assert [(row["row"], figures_of(row)["text_len"]) for row in kept] == [(0, 11.0), (3, 14.0)]
    again, _ = service.process(rows)
    assert again == kept
    assert service.release == "1.6.1"


def test_what_it_would_install_is_an_error_that_names_the_package() -> None:
    spec = JuicerSpec(auto_start=True, python=str(HOME / "bin" / "python"))
    service = JuicerService(spec, [{"language_id_score_filter": {}}], processes=1, environ=os.environ)
    try:
        with pytest.raises(PipelineError, match="fasttext"):
            service.process([{"text": "some text"}])
    finally:
        service.close()

"""Rows are typed, and tables of pandas and polars take them unchanged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rftd.daemon.http.client.rows import RowList
from rftd.ops.errors import UsageError
from rftd.storage.queries.steps import EvalRow


def evaluation(version: int, **metrics: float | None) -> EvalRow:
    return EvalRow(
        id=f"e{version}", stage=0, taskset="held", version=version, generation=0, rows=12, score=version / 10,
        metrics=dict(metrics), completed_ns=1_700_000_000_000_000_000 + version,
    )  # fmt: skip


@pytest.fixture
def rows() -> RowList[EvalRow]:
    return RowList.of([evaluation(1, accuracy=0.5), evaluation(2, accuracy=0.75, length=8.0)])


def test_a_row_has_the_fields_of_its_view_and_its_columns(rows: RowList[EvalRow]) -> None:
    assert rows[1].score == 0.2
    assert rows[1].metrics == {"accuracy": 0.75, "length": 8.0}
    assert rows["accuracy"] == [0.5, 0.75]
    assert rows["length"] == [None, 8.0]
    assert rows[:1]["version"] == [1]
    assert [row.version for row in rows] == [1, 2]
    with pytest.raises(KeyError):
        rows["accurracy"]


def test_pandas_makes_a_table_with_one_column_per_figure(rows: RowList[EvalRow]) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(rows)
    assert list(table["accuracy"]) == [0.5, 0.75]
    assert table["length"].isna().tolist() == [True, False]
    assert table["completed_at"].iloc[0].to_pydatetime() == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert list(table["taskset"]) == ["held", "held"]
    assert pandas.DataFrame(RowList.of(list[EvalRow]())).empty


def test_polars_makes_a_table_with_one_column_per_figure(rows: RowList[EvalRow]) -> None:
    polars = pytest.importorskip("polars")
    table = polars.DataFrame(rows)
    assert table["accuracy"].to_list() == [0.5, 0.75]
    assert table["completed_at"].dtype == polars.Datetime("us", "UTC")
    assert table["score"].to_list() == [0.1, 0.2]


def test_chosen_metrics_are_the_only_figures_among_the_columns() -> None:
    rows = RowList.of([evaluation(1, a=1.0, b=2.0), evaluation(2, a=3.0)], metrics=["b"])
    assert rows["b"] == [2.0, None]
    assert rows.columns == ["version", "stage", "taskset", "b"]
    assert rows[0].metrics == {"a": 1.0, "b": 2.0}


def test_an_unknown_metric_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UsageError, match="no metric 'acuracy'") as raised:
        RowList.of([evaluation(1, accuracy=1.0)], metrics=["acuracy"])
    assert raised.value.fix == "did you mean accuracy?"


def test_a_figure_named_like_a_field_does_not_hide_the_field() -> None:
    [row] = RowList.of([evaluation(1, score=9.0)]).to_dicts()
    assert (row["score"], row["metrics.score"]) == (0.1, 9.0)

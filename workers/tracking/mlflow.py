"""`MlflowRuns`: runs of an MLflow server; points already sent before a kill are not sent again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rftd.ops.errors import ConfigError, UnreachableError
from rftd.workers.tracking.point import COLUMNS, Point
from rftd.workers.tracking.registry import SERVICES
from rftd.workers.tracking.tracker import Kept, Opening

_MARK: Final = "rftd.run"
"""The tag by which a run is found again."""
_FORBIDDEN: Final = re.compile(r"[^\w./ :-]", re.ASCII)
"""Characters forbidden in MLflow's names."""
_BATCH: Final = 500
"""Maximum number of metrics in a request."""
_PARAMS: Final = 50
"""Maximum number of parameters in a request."""
_VALUE_CHARS: Final = 500
"""Maximum length of a parameter's text in every release of the server."""
_TABLES: Final = "mlflow.loggedArtifacts"
"""Tag with the names of a run's tables."""
_MOST_TABLES: Final = 40
"""Maximum number of tables named by the tag."""
_STATUS: Final[Mapping[str, str]] = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
"""MLflow's status by the experiment's end."""


class MlflowRuns:
    """Maintains the runs of one experiment in the project's MLflow experiment."""

    sure_at_once = True
    """True: `settle` confirms storage, because an answered request is stored."""

    def __init__(self, opening: Opening) -> None:
        """Reads address and credentials from the arguments, without connecting."""
        self._run = opening.run
        """The tracked experiment."""
        for argument, variable in (("username", "USERNAME"), ("password", "PASSWORD")):
            if opening.args.get(argument):
                os.environ[f"MLFLOW_TRACKING_{variable}"] = str(opening.args[argument])
        # The caller retries and reports the reason; the library would retry silently for many minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        self._uri = str(opening.args.get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or SERVICES["mlflow"][1])
        """Address of the MLflow server."""
        self._client: Any = None
        """MLflow's client; None until it is opened."""
        self._ids: dict[str, str] = {}
        """MLflow's id of each role's run."""
        self._resumed = True
        """True until the first points are written: an earlier process may have sent some of them."""

    def open(self, kept: Kept) -> None:
        """Finds or creates the runs at the server."""
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._uri)
        self._ids = {}
        for role in self._run.roles:
            self._ids[role] = self._request(self._run_id, role)
        self._resumed = True

    def write(self, points: Sequence[Point]) -> None:
        """Sends the points; after a start only those missing at the server."""
        for role, id in self._ids.items():
            role_points = [point for point in points if self._run.run_of(point) == role]
            metrics = [metric for point in role_points for metric in _metrics(point)]
            if self._resumed:
                metrics = self._request(self._missing, id, metrics)
            for first in range(0, len(metrics), _BATCH):
                self._request(self._client.log_batch, id, metrics=metrics[first : first + _BATCH])
            for point in role_points:
                if point.samples:
                    self._log_table(id, point)
                if point.remark:
                    self._request(self._client.set_tag, id, f"rftd.remark.{point.number}", point.remark[:_VALUE_CHARS])
        self._resumed = False

    def _log_table(self, id: str, point: Point) -> None:
        """Writes the table as an artifact readable by `mlflow.load_table`, named after the step."""
        path = f"{point.table}/{point.step:08d}.json"
        table = {"columns": list(COLUMNS), "data": [sample.cells() for sample in point.samples]}
        self._request(self._client.log_dict, id, table, path)
        # The server's page and `mlflow.load_table` find tables by a tag of bounded length.
        listed = json.loads(self._request(self._client.get_run, id).data.tags.get(_TABLES, "[]"))
        artifact = {"path": path, "type": "table"}
        if artifact not in listed:
            self._request(self._client.set_tag, id, _TABLES, json.dumps([*listed, artifact][-_MOST_TABLES:]))

    def settle(self, *, surely: bool) -> Kept:
        """Returns an empty state: every answered request is stored."""
        return {}

    def close(self, ended: str) -> None:
        """Sets the runs' status if the experiment has ended."""
        if ended in _STATUS:
            for id in self._ids.values():
                self._request(self._client.set_terminated, id, _STATUS[ended])

    def _run_id(self, role: str) -> str:
        """Returns the id of a role's run, created with its parameters if missing."""
        from mlflow.entities import Param

        client = self._client
        experiment = client.get_experiment_by_name(self._run.project)
        experiment_id = client.create_experiment(self._run.project) if experiment is None else experiment.experiment_id
        mark = f"{self._run.experiment}-{role}"
        runs = client.search_runs([experiment_id], filter_string=f"tags.`{_MARK}` = '{mark}'", max_results=1)
        params = [Param(_allowed(name), str(setting)[:_VALUE_CHARS]) for name, setting in _leaves(self._run.config)]
        if runs:
            run = runs[0]
            # An earlier process, or the server, may have ended before all parameters were stored.
            if len(run.data.params) < len(params):
                self._log_params(run.info.run_id, params)
            return str(run.info.run_id)
        tags = {_MARK: mark, "group": self._run.group, "role": role, "rftd.digest": self._run.digest}
        run = client.create_run(experiment_id, run_name=self._run.title(role), tags=tags)
        self._log_params(run.info.run_id, params)
        return str(run.info.run_id)

    def _log_params(self, id: str, params: Sequence[Any]) -> None:
        """Sends parameters in requests of the allowed size."""
        for first in range(0, len(params), _PARAMS):
            self._client.log_batch(id, params=params[first : first + _PARAMS])

    def _missing(self, id: str, metrics: list[Any]) -> list[Any]:
        """Returns the metrics missing from the run: an earlier process may have sent some."""
        present: dict[str, set[int]] = {}
        for metric in metrics:
            if metric.key not in present:
                present[metric.key] = {stored.step for stored in self._client.get_metric_history(id, metric.key)}
        return [metric for metric in metrics if metric.step not in present[metric.key]]

    def _request(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the server's answer. Raises UnreachableError for a temporary failure, and ConfigError."""
        from mlflow.exceptions import MlflowException

        try:
            return call(*args, **kwargs)
        except MlflowException as error:
            status = error.get_http_status_code()
            if status in (401, 403) or "401" in str(error)[:200] or "403" in str(error)[:200]:
                message = f"MLflow at {self._uri} refuses the user or the password"
                fix = "export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                raise ConfigError(message, field="monitor.monitor_args", fix=fix) from None
            if status >= 500 or status == 429:
                message = f"MLflow at {self._uri} does not answer: {str(error)[:200]}"
                raise UnreachableError(message, fix="start it; the tracker continues by itself") from None
            raise


def _metrics(point: Point) -> Iterator[Any]:
    """Yields the figures of a point as MLflow's metrics."""
    from mlflow.entities import Metric

    for name, figure in point.figures.items():
        yield Metric(_allowed(name), figure, point.time_ns // 10**6, point.step)


def _allowed(name: str) -> str:
    """Returns the name with characters forbidden by MLflow replaced, as in Trinity-RFT."""
    return _FORBIDDEN.sub("_", name.replace("@", "_at_"))[:250]


def _leaves(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted path, value) of each setting in a configuration."""
    if isinstance(config, Mapping) and config:
        for name, setting in config.items():
            yield from _leaves(setting, f"{path}.{name}" if path else str(name))
    elif path:
        yield path, config

"""`SubmissionJudge`: the verdict on a submission that is not the owner's, field by field, and its grants."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rftd.daemon.config.field_path import FieldPath, show
from rftd.daemon.config.resolve.tasksets import placed_tasksets
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.naming import NamedValue, named_values
from rftd.daemon.trust import allowances as lists
from rftd.daemon.trust.allowances import Allowances
from rftd.daemon.trust.asker import Asker, NotAllowedError
from rftd.ops.outbound import PrivateAddressError, WebAddress, names_host
from rftd.streams.events.experiment import Grant
from rftd.streams.log.stored_path import inputs_of
from rftd.streams.spec.declaration import NameKind
from rftd.streams.spec.reach import OWNERS, ReachSpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.tracking import TrackerSpec
from rftd.workers.tracking.registry import SERVICES
from rftd.workers.workflows.registry import WORKFLOWS
from rftd.workers.workflows.rewards.registry import REWARDS

_PLAIN_NAME: Final = re.compile(r"[\w.-]+")
_PLAIN_WORD: Final = re.compile(r"[\w.+-]{0,64}")
"""Text of an argument that can name neither a path nor an address."""
_ENGINE_ARGS: Final = frozenset({"extra_engine_args", "engine_args"})
_TASKSET_ARGS: Final = frozenset({"workflow_args", "reward_fn_args"})
"""Arguments that are judged once it is known whose workflow and whose reward they are for."""
_POSTGRES_PORT: Final = 5432
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
_TINKER_KEY: Final = "TINKER_API_KEY"


class SubmissionJudge:
    """Collects grants of one submission. Every check raises NotAllowedError, which never tells whether a thing exists.

    `file` is to be called before anything that a file names is looked at, `spec` before anything is appended.
    """

    def __init__(self, asker: Asker, allowances: Allowances) -> None:
        self.asker: Final = asker
        self._allowances = allowances
        self._grants: dict[Grant, None] = {}

    @property
    def grants(self) -> tuple[Grant, ...]:
        """The grants so far; none of an owner's submission."""
        return tuple(self._grants)

    @property
    def reach(self) -> ReachSpec:
        """The addresses and keys that workers hold the experiment to."""
        if self.asker.is_owner:
            return OWNERS
        named = {kind: [grant.value for grant in self._grants if grant.kind == kind] for kind in (_URLS, _SECRETS)}
        return ReachSpec(
            restricted=True,
            addresses=tuple(named[_URLS]),
            secrets={name: self._allowances.secrets[name] for name in named[_SECRETS]},
        )

    def file(self, experiment: Experiment) -> None:
        """Judges the names in an experiment file. Blocks."""
        if self.asker.is_owner:
            return
        for named in named_values(experiment):
            self._checks[named.kind](named)
        self._services(experiment)

    def spec(self, spec: ExperimentSpec) -> None:
        """Judges the specification that follows from the file: its folders, parts and their arguments. Blocks."""
        if self.asker.is_owner:
            return
        self._path(("checkpoint_root_dir",), spec.job_dir)
        for number, stage in enumerate(spec.stages):
            at: FieldPath = ("stages", number) if len(spec.stages) > 1 else ()
            self._code(stage, at)
            self._keys(stage, at)
            for taskset, path in placed_tasksets(stage):
                self._parts(taskset, (*at, *path))
        for tracker in spec.trackers:
            self._tracker(tracker)
        # Last: whatever else the workers would read, none of which a field of the file names by itself.
        for folder in sorted(inputs_of(spec)):
            self._path(("model", "model_path"), folder)

    @property
    def _checks(self) -> Mapping[NameKind, Callable[[NamedValue], None]]:
        return {
            NameKind.PATH: self._paths,
            NameKind.PATH_PART: self._part,
            NameKind.URL: self._url,
            NameKind.ADDRESS: self._address,
            NameKind.VARIABLE: self._variable,
            NameKind.CODE: _later,
            NameKind.ARGUMENTS: self._arguments,
            NameKind.PLUGIN: _later,
            NameKind.PLAIN: _later,
        }

    def _take(self, grant: Grant | None, path: FieldPath, kind: str, what: str, line: str) -> None:
        if grant is None:
            raise NotAllowedError(
                f"the daemon's configuration does not allow {what}",
                field=show(path),
                fix=f"ask the daemon's owner for the line `{kind}: {line}` in its configuration",
            )
        self._grants[grant] = None

    def _paths(self, named: NamedValue) -> None:
        if isinstance(named.value, list):
            for number, text in enumerate(named.value):
                self._path((*named.path, number), text)
        else:
            self._path(named.path, _path_in(named.value))

    def _path(self, path: FieldPath, value: object) -> None:
        grant = self._allowances.path(value) if isinstance(value, str) else None
        self._take(grant, path, lists.ROOTS, "this path", "[FOLDER]")

    def _part(self, named: NamedValue) -> None:
        plain = isinstance(named.value, str) and _PLAIN_NAME.fullmatch(named.value) and named.value not in (".", "..")
        if not plain:
            self._take(None, named.path, lists.ROOTS, "anything but a plain name", "[FOLDER]")

    def _url(self, named: NamedValue) -> None:
        variable = _reference(named.value)
        if variable is not None:
            self._take(
                self._allowances.secret(variable, None),
                named.path,
                _SECRETS,
                "this variable",
                f"{{{variable}: [HOST]}}",
            )
            return
        try:
            granted = self._allowances.url(str(named.value), field=show(named.path))
        except PrivateAddressError:
            self._take(None, named.path, _URLS, "this address", "[HOST:PORT]")
            return
        if granted is not None:
            self._grants[granted] = None

    def folder(self, path: FieldPath, value: str) -> None:
        """Judges a folder that the daemon writes to before the specification is there. Blocks."""
        if not self.asker.is_owner:
            self._path(path, value)

    def database(self, path: FieldPath, value: object) -> None:
        """Judges a database before it is opened: a file below the roots, an address, or a variable. Blocks."""
        if self.asker.is_owner:
            return
        if _reference(value) is not None:
            self._url(NamedValue(NameKind.URL, path, value))
            return
        from sqlalchemy.engine import URL, make_url
        from sqlalchemy.exc import ArgumentError

        try:
            # By the parser of whoever opens it: to another one, `allowed:5432/x@other` is of another host.
            url = make_url(str(value))
        except (ArgumentError, ValueError):
            url = URL.create("none")
        if url.drivername.startswith("sqlite"):
            self._path(path, "" if url.query else url.database)
            return
        # Its parameters name files: certificates, and those of passwords.
        address = WebAddress(url.drivername, url.host or "", url.port or _POSTGRES_PORT)
        allowed = not url.query and names_host(self._allowances.allow_urls, address)
        grant = Grant(_URLS, f"{address.host}:{address.port}") if allowed else None
        self._take(grant, path, _URLS, "this database", "[HOST:PORT]")

    def _address(self, named: NamedValue) -> None:
        if named.value in _LOOPBACK:
            return
        grant = Grant(_URLS, str(named.value)) if named.value in self._allowances.allow_urls else None
        self._take(grant, named.path, _URLS, "to listen on this address", "[ADDRESS]")

    def _variable(self, named: NamedValue) -> None:
        if isinstance(named.value, dict) and _reference(named.value) is None:
            for name, value in named.value.items():
                self._set_variable((*named.path, name), str(name), value)
            return
        variable = _reference(named.value) or named.value
        if variable == "EMPTY":  # the guide's word for no key
            return
        # The host that the key goes to is checked beside its address, and again by the worker that sends it.
        grant = self._allowances.secret(str(variable), None)
        self._take(grant, named.path, _SECRETS, "this variable", "{NAME: [HOST]}")

    def _set_variable(self, path: FieldPath, name: str, value: object) -> None:
        self._take(self._allowances.variable(name), path, lists.ALLOW_ENV, "this variable", "[NAME]")
        variable = _reference(value)
        if variable is not None:
            grant = self._allowances.anywhere(variable)
            self._take(grant, path, _SECRETS, "to give this variable to a workflow", '{NAME: ["*"]}')

    def _arguments(self, named: NamedValue) -> None:
        field = named.path[-1]
        if field in _TASKSET_ARGS:
            return
        if field in _ENGINE_ARGS:
            for name in _names(named.value):
                grant = self._allowances.argument(name)
                self._take(grant, (*named.path, name), lists.ALLOW_ARGS, "this argument", "[NAME]")
            return
        for path, value in _leaves(named.value, named.path):
            if not _is_plain(value):
                self._take(None, path, lists.ALLOW_ARGS, "text that may name something here", "[NAME]")

    def _parts(self, taskset: TasksetSpec, at: FieldPath) -> None:
        """Judges the arguments of a taskset's workflow and reward; those of ours name nothing but `path`."""
        if "path" in taskset.reward_args:
            self._path((*at, "reward_fn_args", "path"), taskset.reward_args["path"])
        if not WORKFLOWS.builtin(taskset.workflow):
            self._third_party(taskset.workflow, taskset.workflow_args, (*at, "workflow_args"))
        if taskset.reward is not None and not REWARDS.builtin(taskset.reward):
            self._third_party(taskset.reward, taskset.reward_args, (*at, "reward_fn_args"))

    def _third_party(self, plugin: str, arguments: Mapping[str, Any], path: FieldPath) -> None:
        for name in arguments:
            grant = self._allowances.argument(f"{plugin}.{name}")
            self._take(grant, (*path, name), lists.ALLOW_ARGS, "this argument", f"[{plugin}.NAME]")

    def _code(self, stage: StageSpec, at: FieldPath) -> None:
        """Judges the folders whose own code runs."""
        folders = [(stage.model.path, stage.model.trust_remote_code)]
        folders += [(path, stage.model.trust_remote_code) for path in (stage.trainer.critic_path,) if path]
        folders += [(path, stage.model.trust_remote_code) for path in (stage.trainer.teacher_path,) if path]
        folders += [(model.path, model.trust_remote_code) for model in stage.auxiliary if model.path]
        for folder, trusted in folders:
            if trusted:
                path = (*at, "model", "trust_remote_code")
                self._take(self._allowances.code(folder), path, lists.ALLOW_CODE, "this folder's code", "[FOLDER]")

    def _services(self, experiment: Experiment) -> None:
        """Judges the variables of services that no field needs to name."""
        tinker = experiment.model.tinker
        if tinker.enable:
            grant = self._allowances.secret(_TINKER_KEY, tinker.base_url or None)
            path = ("model", "tinker", "enable")
            self._take(grant, path, _SECRETS, "to use its key of Tinker", "{TINKER_API_KEY: [HOST]}")
        external = experiment.model.external_model
        if external.enable:  # the names that it has without being written, too
            for name in (external.base_url_env, external.api_key_env):
                if name:
                    grant = self._allowances.secret(name, None)
                    self._take(grant, ("model", "external_model"), _SECRETS, "this variable", "{NAME: [HOST]}")

    def _tracker(self, tracker: TrackerSpec) -> None:
        """Judges the service that a tracker sends to: its address, its key, and the variables that it names."""
        at: FieldPath = ("monitor", "monitor_type")
        for argument, variable in tracker.variables.items():
            grant = self._allowances.secret(variable, None)
            self._take(grant, ("monitor", "monitor_args", argument), _SECRETS, "this variable", "{NAME: [HOST]}")
        if tracker.kind not in SERVICES:
            return
        key, url = SERVICES[tracker.kind]
        if key:
            grant = self._allowances.secret(tracker.variables.get("api_key", key), url)
            self._take(grant, at, _SECRETS, f"to use its key of {tracker.kind}", f"{{{key}: [HOST]}}")
        elif "uri" not in tracker.variables:
            self._url(NamedValue(NameKind.URL, at, url))

    def _keys(self, stage: StageSpec, at: FieldPath) -> None:
        """Judges the hosts that keys of auxiliary models go to; where a variable says the host, its worker does."""
        for number, model in enumerate(stage.auxiliary):
            if model.api_key_env and model.base_url:
                path = (*at, "explorer", "auxiliary_models", number, "api_key")
                grant = self._allowances.secret(model.api_key_env, model.base_url)
                self._take(grant, path, _SECRETS, "this variable for this host", "{NAME: [HOST]}")


_URLS: Final = lists.ALLOW_URLS
_SECRETS: Final = lists.SECRETS


def _later(_named: NamedValue) -> None:
    """Plain text and names of installed parts name nothing more; code is judged with its folder."""


def _path_in(value: object) -> object:
    """The path that a field holds: itself, or the argument `path` of a part."""
    return value.get("path", "") if isinstance(value, dict) else value


def _reference(value: object) -> str | None:
    """The name in `{env: NAME}`; None for anything else."""
    if isinstance(value, dict) and set(value) == {"env"} and isinstance(value["env"], str):
        return value["env"]
    return None


def _names(value: Any) -> Iterator[str]:
    """The names of arguments; those below another one are `OUTER.INNER`."""
    for name, inner in value.items():
        if isinstance(inner, dict):
            yield from (f"{name}.{below}" for below in _names(inner))
        else:
            yield str(name)


def _leaves(value: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return _PLAIN_WORD.fullmatch(value) is not None
    return value is None or isinstance(value, bool | int | float)

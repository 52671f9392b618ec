"""`SubmissionJudge`: the verdict on a submission of anybody but the owner, field by field, with the grants."""

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
from rftd.streams.log.marked import inputs_of
from rftd.streams.spec.declaration import NameKind
from rftd.streams.spec.engines import OWNERS, ReachSpec
from rftd.streams.spec.spec import ExperimentSpec, StageSpec, TasksetSpec
from rftd.streams.spec.stage_parts import TrackerSpec
from rftd.workers.tracking.registry import SERVICES
from rftd.workers.workflows.agentscope.names import AGENTSCOPE_WORKFLOWS, agentscope_line
from rftd.workers.workflows.class_path import class_path
from rftd.workers.workflows.environments.address import environment_address
from rftd.workers.workflows.registry import ENVIRONMENT_WORKFLOW, WORKFLOWS
from rftd.workers.workflows.rewards.registry import REWARDS
from rftd.workers.workflows.source import agent_source, source_name

_PLAIN_NAME: Final = re.compile(r"[\w.-]+")
"""Form of a name that cannot leave its folder: word characters, dots and hyphens."""
_PLAIN_WORD: Final = re.compile(r"[\w.+-]{0,64}")
"""Argument text unable to name a path or an address."""
_ENGINE_ARGS: Final = frozenset({"extra_engine_args", "engine_args"})
"""Fields with arguments for an engine, judged by `allow_args`."""
_AGENT_COMMAND: Final = "agent_command_workflow"
"""Name of the workflow that runs a command."""
_WIDENING: Final = frozenset({"environ", "image", "isolation", "network", "readable"})
"""Arguments of an agent's command that give it more than the task and the model."""
_TASKSET_ARGS: Final = frozenset({"workflow_args", "reward_fn_args"})
"""Arguments judged later, when the receiving workflow and reward are known."""
_POSTGRES_PORT: Final = 5432
"""Port of a Postgres URL without one."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
"""Addresses that need no grant to listen on."""
_TINKER_KEY: Final = "TINKER_API_KEY"
"""Variable with the key of the Tinker service."""


class SubmissionJudge:
    """Collects grants of one submission. Every check raises NotAllowedError, never revealing whether a named object
    exists.

    Call `file` before opening anything named by the file, and `spec` before appending anything.
    """

    def __init__(self, asker: Asker, allowances: Allowances) -> None:
        self.asker: Final = asker
        self._allowances = allowances
        self._grants: dict[Grant, None] = {}

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Grants collected so far; empty for the owner's submissions."""
        return tuple(self._grants)

    @property
    def reach(self) -> ReachSpec:
        """Addresses and keys to which workers restrict the experiment."""
        if self.asker.is_owner:
            return OWNERS
        named = {kind: [grant.value for grant in self._grants if grant.kind == kind] for kind in (_URLS, _SECRETS)}
        return ReachSpec(
            restricted=True,
            addresses=tuple(named[_URLS]),
            secrets={name: self._allowances.secrets[name] for name in named[_SECRETS]},
        )

    def file(self, experiment: Experiment) -> None:
        """Judges all names in an experiment file: paths, URLs, variables and arguments. Blocks."""
        if self.asker.is_owner:
            return
        for named in named_values(experiment):
            self._checks[named.kind](named)
        self._services(experiment)

    def spec(self, spec: ExperimentSpec) -> None:
        """Judges the specification resolved from the file: folders, parts and arguments. Blocks."""
        if self.asker.is_owner:
            return
        self._path(("checkpoint_root_dir",), spec.job_dir)
        for number, stage in enumerate(spec.stages):
            at: FieldPath = ("stages", number) if len(spec.stages) > 1 else ()
            self._code(stage, at)
            self._loss(stage, at)
            self._keys(stage, at)
            for taskset, path in placed_tasksets(stage):
                self._parts(taskset, (*at, *path))
        for tracker in spec.trackers:
            self._tracker(tracker)
        # Finally, all further folders read by workers, although not named by a field of the file.
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
            NameKind.SOURCE: self._source,
            NameKind.PLUGIN: _later,
            NameKind.PLAIN: _later,
        }

    def _add_grant(self, grant: Grant | None, path: FieldPath, kind: str, subject: str, line: str) -> None:
        if grant is None:
            raise NotAllowedError(
                f"the daemon's configuration does not allow {subject}",
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

    def _path(self, path: FieldPath, text: object) -> None:
        grant = self._allowances.path(text) if isinstance(text, str) else None
        self._add_grant(grant, path, lists.ROOTS, "this path", "[FOLDER]")

    def _part(self, named: NamedValue) -> None:
        plain = isinstance(named.value, str) and _PLAIN_NAME.fullmatch(named.value) and named.value not in (".", "..")
        if not plain:
            self._add_grant(None, named.path, lists.ROOTS, "anything but a plain name", "[FOLDER]")

    def _url(self, named: NamedValue) -> None:
        variable = _reference(named.value)
        if variable is not None:
            self._add_grant(
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
            self._add_grant(None, named.path, _URLS, "this address", "[HOST:PORT]")
            return
        if granted is not None:
            self._grants[granted] = None

    def folder(self, path: FieldPath, text: str) -> None:
        """Judges a folder written by the daemon before the specification exists. Blocks."""
        if not self.asker.is_owner:
            self._path(path, text)

    def database(self, path: FieldPath, source: object) -> None:
        """Judges a database before it is opened: a file below the roots, an address, or a variable. Blocks."""
        if self.asker.is_owner:
            return
        if _reference(source) is not None:
            self._url(NamedValue(NameKind.URL, path, source))
            return
        from sqlalchemy.engine import URL, make_url
        from sqlalchemy.exc import ArgumentError

        try:
            # Parsed by the driver's own parser: to other parsers, `allowed:5432/x@other` has a different host.
            url = make_url(str(source))
        except (ArgumentError, ValueError):
            url = URL.create("none")
        if url.drivername.startswith("sqlite"):
            self._path(path, "" if url.query else url.database)
            return
        # Parameters of the URL may name files: certificates and password files.
        address = WebAddress(url.drivername, url.host or "", url.port or _POSTGRES_PORT)
        allowed = not url.query and names_host(self._allowances.allow_urls, address)
        grant = Grant(_URLS, f"{address.host}:{address.port}") if allowed else None
        self._add_grant(grant, path, _URLS, "this database", "[HOST:PORT]")

    def _source(self, named: NamedValue) -> None:
        for file, text in named.value.items() if isinstance(named.value, dict) else ():
            grant = self._allowances.source(str(text))
            self._add_grant(grant, (*named.path, file), lists.ALLOW_SOURCES, "this code", "[DIGEST]")

    def _address(self, named: NamedValue) -> None:
        if named.value in _LOOPBACK:
            return
        grant = Grant(_URLS, str(named.value)) if named.value in self._allowances.allow_urls else None
        self._add_grant(grant, named.path, _URLS, "to listen on this address", "[ADDRESS]")

    def _variable(self, named: NamedValue) -> None:
        if isinstance(named.value, dict) and _reference(named.value) is None:
            for name, content in named.value.items():
                self._set_variable((*named.path, name), str(name), content)
            return
        variable = _reference(named.value) or named.value
        if variable == "EMPTY":  # the guide's word for no key
            return
        # The host receiving the key is checked together with its address, and again by the sending worker.
        grant = self._allowances.secret(str(variable), None)
        self._add_grant(grant, named.path, _SECRETS, "this variable", "{NAME: [HOST]}")

    def _set_variable(self, path: FieldPath, name: str, content: object) -> None:
        self._add_grant(self._allowances.variable(name), path, lists.ALLOW_ENV, "this variable", "[NAME]")
        variable = _reference(content)
        if variable is not None:
            grant = self._allowances.anywhere(variable)
            self._add_grant(grant, path, _SECRETS, "to give this variable to a workflow", '{NAME: ["*"]}')

    def _arguments(self, named: NamedValue) -> None:
        field = named.path[-1]
        if field in _TASKSET_ARGS:
            return
        if field in _ENGINE_ARGS:
            for name in _names(named.value):
                grant = self._allowances.argument(name)
                self._add_grant(grant, (*named.path, name), lists.ALLOW_ARGS, "this argument", "[NAME]")
            return
        for path, leaf in _leaves(named.value, named.path):
            if not _is_plain(leaf):
                self._add_grant(None, path, lists.ALLOW_ARGS, "text that may name something here", "[NAME]")

    def _parts(self, taskset: TasksetSpec, at: FieldPath) -> None:
        """Judges the arguments of a taskset's workflow and reward; built-in parts name nothing but `path`."""
        for arguments, name in ((taskset.reward_args, "reward_fn_args"), (taskset.workflow_args, "workflow_args")):
            if "path" in arguments:
                self._path((*at, name, "path"), arguments["path"])
        if source_name(taskset.workflow) is not None:
            raise NotAllowedError(
                "only the daemon's owner may submit workflows as code: no sandbox holds them",
                field=show((*at, "default_workflow_type")),
                fix="use agent_command_workflow, or ask the daemon's owner to install the workflow",
            )
        if agent_source(taskset.workflow, taskset.workflow_args) is not None:
            raise NotAllowedError(
                "only the daemon's owner may submit agent programs as code: no sandbox holds them",
                field=show((*at, "workflow_args", "agent")),
                fix="use agent_command_workflow, or ask the daemon's owner to install the agent",
            )
        if taskset.workflow == _AGENT_COMMAND:
            self._command(taskset.workflow_args, (*at, "workflow_args"))
        if taskset.workflow in AGENTSCOPE_WORKFLOWS:
            self._agentscope(taskset, (*at, "workflow_args"))
        if taskset.workflow == ENVIRONMENT_WORKFLOW:
            self.environment(taskset.workflow_args, (*at, "workflow_args"))
        if taskset.workflow not in WORKFLOWS.names() and class_path(taskset.workflow) is not None:
            grant = self._allowances.class_of_package(taskset.workflow)
            field = (*at, "default_workflow_type")
            self._add_grant(grant, field, lists.ALLOW_CODE, "this class", f"[{taskset.workflow}]")
        if not WORKFLOWS.builtin(taskset.workflow):
            self._third_party(taskset.workflow, taskset.workflow_args, (*at, "workflow_args"))
        # Arguments of a source are for its sandbox, and name nothing outside.
        of_source = source_name(taskset.reward) is not None
        if taskset.reward is not None and not of_source and not REWARDS.builtin(taskset.reward):
            self._third_party(taskset.reward, taskset.reward_args, (*at, "reward_fn_args"))

    def _command(self, arguments: Mapping[str, Any], path: FieldPath) -> None:
        """Judges the command of an agent, its folder, and every argument widening the command's reach."""
        words = arguments.get("agent_command", ())
        subject = "this command"
        self._add_grant(
            self._allowances.command(words), (*path, "agent_command"), lists.ALLOW_COMMANDS, subject, "[COMMAND]"
        )
        if "agent_folder" in arguments:
            self._path((*path, "agent_folder"), arguments["agent_folder"])
        wide = {name: argument for name, argument in arguments.items() if name in _WIDENING}
        self._third_party(_AGENT_COMMAND, wide, path)

    def _agentscope(self, taskset: TasksetSpec, path: FieldPath) -> None:
        """Judges the command line of an AgentScope agent, its folder, and every argument widening its reach."""
        arguments = taskset.workflow_args
        grant = self._allowances.command_line(agentscope_line(taskset.workflow, arguments))
        self._add_grant(grant, (*path, "python"), lists.ALLOW_COMMANDS, "this agent", "[COMMAND]")
        if "agent_folder" in arguments:
            self._path((*path, "agent_folder"), arguments["agent_folder"])
        wide = {name: argument for name, argument in arguments.items() if name in _WIDENING}
        self._third_party(_AGENT_COMMAND, wide, path)

    def environment(self, arguments: Mapping[str, Any], path: FieldPath, address: FieldPath | None = None) -> None:
        """Judges the command line of an environment's server, its folder, and every argument widening its reach.

        `address` is the field of the address, by default the argument. Blocks. Called before a server starts. Raises
        ConfigError for an invalid address.
        """
        if self.asker.is_owner:
            return
        words = arguments.get("environment_command") or ()
        wrong = not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words)
        line = "" if wrong else environment_address(str(arguments.get("environment"))).line(words)
        where = (*path, "environment_command") if words else address or (*path, "environment")
        self._add_grant(
            self._allowances.command_line(line), where, lists.ALLOW_COMMANDS, "this environment", "[COMMAND]"
        )
        if "environment_folder" in arguments:
            self._path((*path, "environment_folder"), arguments["environment_folder"])
        wide = {name: argument for name, argument in arguments.items() if name in _WIDENING}
        self._third_party(ENVIRONMENT_WORKFLOW, wide, path)

    def _third_party(self, plugin: str, arguments: Mapping[str, Any], path: FieldPath) -> None:
        for name in arguments:
            grant = self._allowances.argument(f"{plugin}.{name}")
            self._add_grant(grant, (*path, name), lists.ALLOW_ARGS, "this argument", f"[{plugin}.NAME]")

    def _code(self, stage: StageSpec, at: FieldPath) -> None:
        """Judges the folders with code to run."""
        folders = [(stage.model.path, stage.model.trust_remote_code)]
        folders += [(path, stage.model.trust_remote_code) for path in (stage.trainer.critic_path,) if path]
        folders += [(path, stage.model.trust_remote_code) for path in (stage.trainer.teacher_path,) if path]
        folders += [(model.path, model.trust_remote_code) for model in stage.auxiliary if model.path]
        for folder, trusted in folders:
            if trusted:
                path = (*at, "model", "trust_remote_code")
                self._add_grant(self._allowances.code(folder), path, lists.ALLOW_CODE, "this folder's code", "[FOLDER]")

    def _loss(self, stage: StageSpec, at: FieldPath) -> None:
        """Refuses a loss submitted as code, which runs in the trainer's process."""
        if source_name(stage.algorithm.policy_loss) is not None:
            raise NotAllowedError(
                "only the daemon's owner may submit losses as code: no sandbox holds them",
                field=show((*at, "algorithm", "policy_loss_fn")),
                fix="name an installed loss, or ask the daemon's owner to install this one",
            )

    def _services(self, experiment: Experiment) -> None:
        """Judges the variables of services used without being named in a field."""
        tinker = experiment.model.tinker
        if tinker.enable:
            grant = self._allowances.secret(_TINKER_KEY, tinker.base_url or None)
            path = ("model", "tinker", "enable")
            self._add_grant(grant, path, _SECRETS, "to use its key of Tinker", "{TINKER_API_KEY: [HOST]}")
        juicer = experiment.service.data_juicer
        if juicer is not None and juicer.auto_start:
            grant = self._allowances.command_line(juicer.python or "data_juicer")
            path = ("service", "data_juicer", "auto_start")
            self._add_grant(grant, path, lists.ALLOW_COMMANDS, "this service", "[COMMAND]")
        external = experiment.model.external_model
        if external.enable:  # default names count as well
            for name in (external.base_url_env, external.api_key_env):
                if name:
                    grant = self._allowances.secret(name, None)
                    self._add_grant(grant, ("model", "external_model"), _SECRETS, "this variable", "{NAME: [HOST]}")

    def _tracker(self, tracker: TrackerSpec) -> None:
        """Judges a tracker's service: address, key, and named variables."""
        at: FieldPath = ("monitor", "monitor_type")
        for argument, variable in tracker.variables.items():
            grant = self._allowances.secret(variable, None)
            self._add_grant(grant, ("monitor", "monitor_args", argument), _SECRETS, "this variable", "{NAME: [HOST]}")
        if tracker.kind not in SERVICES:
            return
        key, url = SERVICES[tracker.kind]
        if key:
            grant = self._allowances.secret(tracker.variables.get("api_key", key), url)
            self._add_grant(grant, at, _SECRETS, f"to use its key of {tracker.kind}", f"{{{key}: [HOST]}}")
        elif "uri" not in tracker.variables:
            self._url(NamedValue(NameKind.URL, at, url))

    def _keys(self, stage: StageSpec, at: FieldPath) -> None:
        """Judges the hosts receiving keys of auxiliary models; a host given by a variable is checked by the worker."""
        for number, model in enumerate(stage.auxiliary):
            if model.api_key_env and model.base_url:
                path = (*at, "explorer", "auxiliary_models", number, "api_key")
                grant = self._allowances.secret(model.api_key_env, model.base_url)
                self._add_grant(grant, path, _SECRETS, "this variable for this host", "{NAME: [HOST]}")


_URLS: Final = lists.ALLOW_URLS
"""Allow-list of addresses."""
_SECRETS: Final = lists.SECRETS
"""Allow-list of secret variables."""


def _later(_named: NamedValue) -> None:
    """Accepts plain text and names of installed parts, which refer to nothing else; code is judged with its folder."""


def _path_in(content: object) -> object:
    """Returns the path in a field: the value, or the argument `path` of a part."""
    return content.get("path", "") if isinstance(content, dict) else content


def _reference(content: object) -> str | None:
    """Returns the name in `{env: NAME}`; None for anything else."""
    if isinstance(content, dict) and set(content) == {"env"} and isinstance(content["env"], str):
        return content["env"]
    return None


def _names(arguments: Any) -> Iterator[str]:
    """Yields the names of arguments; nested arguments are named `OUTER.INNER`."""
    for name, inner in arguments.items():
        if isinstance(inner, dict):
            yield from (f"{name}.{below}" for below in _names(inner))
        else:
            yield str(name)


def _leaves(node: Any, path: FieldPath) -> Iterator[tuple[FieldPath, Any]]:
    if isinstance(node, dict | list):
        for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(inner, (*path, key))
    else:
        yield path, node


def _is_plain(leaf: object) -> bool:
    if isinstance(leaf, str):
        return _PLAIN_WORD.fullmatch(leaf) is not None
    return leaf is None or isinstance(leaf, bool | int | float)

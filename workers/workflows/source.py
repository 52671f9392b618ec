"""Python source text submitted with an experiment, without a package: names, checks, loading, and rewards.

A taskset names a function or class as `FILE.py:NAME`, and the specification holds the text of `FILE.py`. Only the
experiment names a source: a row that does is refused, because data must not choose code. `workflow_source` opens
workflows and agents, and `learning.losses.loss_source` losses.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import hashlib
import importlib.util
import inspect
import linecache
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from rftd.ops.errors import ConfigError
from rftd.ops.extras import TORCH, check_extra
from rftd.workers.workflows.marks import check_mark
from rftd.workers.workflows.trinity import names as trinity

if TYPE_CHECKING:  # every check of an experiment file imports this module
    from rftd.workers.workflows.rewards.reward import Reward
    from rftd.workers.workflows.trinity.imports import SourceImports

FILE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}\.py")
"""Name of a source file, without a folder."""
_NAME: Final = re.compile(r"(.+\.py):([A-Za-z_]\w*)", re.DOTALL)
_SCORED: Final = ("response", "truth", "task")
"""Parameters passed to every reward."""
_ON_REQUEST: Final = ("rollout", "auxiliary_models")
"""Parameters passed to a reward whose signature has them."""
_AGENT_PROGRAM: Final = "agent_program_workflow"
_CLIENTS: Final = "openai"
"""Package imported by files of Trinity-RFT; rftd has a stand-in where it is not installed."""
_FIX: Final = "correct the file, and submit the experiment again"


class SourceName(NamedTuple):
    """A function or class of a source file, written `FILE.py:NAME`."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}:{self.name}"


def source_name(text: str | None) -> SourceName | None:
    """Returns the parts of `PATH.py:NAME`; None for the name of a registered part."""
    match = _NAME.fullmatch(text or "")
    return None if match is None else SourceName(match[1], match[2])


def agent_source(workflow: str, arguments: Mapping[str, Any]) -> SourceName | None:
    """Returns the source of an agent program in the arguments of its workflow; None for other workflows and agents."""
    agent = arguments.get("agent") if workflow == _AGENT_PROGRAM else None
    return source_name(agent) if isinstance(agent, str) else None


def check_source(name: SourceName, text: str, *, imports: bool = False) -> None:
    """Checks a source without running it: syntax, the name's definition, and with `imports` the packages imported.

    Raises ConfigError, with the line of the file.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        where = name.file if line is None else f"{name.file}:{line}"
        raise ConfigError(f"is no Python: {getattr(error, 'msg', error)}", where=where, fix="correct it") from None
    of_trinity = imports_trinity(text)
    defined = [defined_name for node in tree.body for defined_name in _defined(node)]
    if of_trinity:
        _check_trinity(name, tree)
        defined += [registered for node in tree.body for registered in _registered(node)]
    if name.name not in defined:
        near = difflib.get_close_matches(name.name, defined, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it defines {', '.join(defined) or 'nothing'}"
        raise ConfigError(f"defines no {name.name!r}", where=name.file, fix=hint)
    for node in tree.body if imports else ():
        for package in _imported(node):
            if not _is_installed(package) and not (of_trinity and package in (trinity.PACKAGE, _CLIENTS)):
                raise ConfigError(
                    f"imports {package!r}, which is not installed where the daemon runs",
                    where=f"{name.file}:{node.lineno}",
                    fix="install the package there, or write what it needs into the file: a source is one file",
                )


def open_reward_source(name: SourceName, text: str, arguments: Mapping[str, Any]) -> Reward:
    """Returns the reward in a source: a function of `response`, `truth` and `task` by name, or a class with `score`.

    `arguments` are further parameters. Raises ConfigError if the source fails, or the arguments do not fit.
    """
    target = load_class_text("reward", name, text)
    check_mark("reward", target)
    if inspect.isclass(target) and imports_trinity(text):
        from rftd.workers.workflows.trinity.rewards import RewardOfClass, TrinityReward

        if issubclass(target, TrinityReward):
            return cast("Reward", RewardOfClass(target, arguments))
    if inspect.isclass(target):
        return cast("Reward", open_instance("reward", name, target, arguments, "score"))
    return _function_reward(name, target, arguments)


def _function_reward(name: SourceName, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Reward:
    passed = passed_parameters("reward", name, function, (*_SCORED, *_ON_REQUEST), arguments)
    parameters = inspect.signature(function).parameters

    def call(response: str, truth: str, task: Any, more: Mapping[str, Any]) -> Any:
        given = {"response": response, "truth": truth, "task": task, **more}
        return function(**{parameter: given[parameter] for parameter in passed if parameter in given}, **arguments)

    def score(response: str, truth: str, task: Any, **more: Any) -> Any:
        return call(response, truth, task, more)

    async def score_async(response: str, truth: str, task: Any, **more: Any) -> Any:
        return await cast(Awaitable[Any], call(response, truth, task, more))

    chosen: Any = score_async if inspect.iscoroutinefunction(function) else score
    plain = [inspect.Parameter(parameter, inspect.Parameter.POSITIONAL_OR_KEYWORD) for parameter in _SCORED]
    requested = [
        parameters[parameter].replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in _ON_REQUEST
        if parameter in passed
    ]
    # The scorer reads the signature: it passes the rollout and the auxiliary models only to a reward naming them.
    chosen.__signature__ = inspect.Signature([*plain, *requested])
    return cast("Reward", SimpleNamespace(score=chosen))


def passed_parameters(
    kind: str, name: SourceName, function: Any, offered: tuple[str, ...], arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the offered parameters in a function's signature. Raises ConfigError for missing and unknown ones."""
    if not callable(function):
        raise ConfigError(
            f"{kind} {str(name)!r} is a {type(function).__name__}", where=name.file, fix="name a function"
        )
    parameters = inspect.signature(function).parameters.values()
    named = [parameter for parameter in parameters if parameter.kind not in (_VAR_POSITIONAL, _VAR_KEYWORD)]
    takes_any = any(parameter.kind is _VAR_KEYWORD for parameter in parameters)
    names = {parameter.name for parameter in named}
    unknown = [argument for argument in arguments if argument in offered or (argument not in names and not takes_any)]
    if unknown:
        own = sorted(names - set(offered))
        raise ConfigError(
            f"{kind} {str(name)!r} takes no argument {unknown[0]!r}",
            where=name.file,
            fix=f"it takes: {', '.join(own) or 'none'}",
        )
    for parameter in named:
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY or (
            parameter.name not in offered and parameter.name not in arguments and parameter.default is parameter.empty
        ):
            raise ConfigError(
                f"{kind} {str(name)!r} has a parameter {parameter.name!r} that nothing fills",
                where=name.file,
                fix=f"name it {', '.join(offered)}, give it a default, or set it in the arguments of the {kind}",
            )
    return tuple(parameter for parameter in offered if parameter in names)


_VAR_POSITIONAL: Final = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD


def open_instance(kind: str, name: SourceName, target: type, arguments: Mapping[str, Any], method: str) -> object:
    """Returns an instance of a class with a method. Raises ConfigError for wrong arguments, or without the method."""
    try:
        instance: object = target(**arguments)
    except Exception as error:
        problem = f"{kind} {str(name)!r} does not take its arguments {dict(arguments)!r}: {error}"
        raise ConfigError(problem, where=name.file, fix=f"correct the arguments of the {kind}") from error
    if not callable(getattr(instance, method, None)):
        raise ConfigError(f"{kind} {str(name)!r} has no method {method!r}", where=name.file, fix="define it")
    return instance


_TRINITY_IMPORTS: Final[dict[str, SourceImports]] = {}
"""The imports of each loaded source with Trinity-RFT's modules, by the name of the source's module."""


def load_class_text(kind: str, name: SourceName, text: str, *, package: str = "") -> Any:
    """Returns the function or class in a text; the module of equal text is made once per process.

    `package` is the package of relative imports, for the text of an installed module.
    """
    digest = hashlib.sha256(f"{package}\0{text}".encode()).hexdigest()
    module_name = f"rftd_source_{digest[:32]}"
    module = sys.modules.get(module_name)
    if module is None:
        module = ModuleType(module_name)
        module.__file__ = filename = f"<{name.file} {digest[:12]}>"
        module.__package__ = package
        # Tracebacks show the lines of the text, although no file has them.
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        sys.modules[module_name] = module  # before it runs: a dataclass looks its module up
        try:
            if imports_trinity(text):
                check_extra(TORCH, "a file with classes of Trinity-RFT")
                from rftd.workers.workflows.trinity.imports import SourceImports

                _TRINITY_IMPORTS[module_name] = SourceImports()
                # Imports inside functions, too, read the function's own builtins.
                module.__dict__["__builtins__"] = {
                    **vars(builtins),
                    "__import__": _TRINITY_IMPORTS[module_name],
                }
            exec(compile(text, filename, "exec"), module.__dict__)  # noqa: S102 - the owner's code, as a plug-in is
        except BaseException as error:  # a module may leave by SystemExit as well
            del sys.modules[module_name]
            problem = f"{kind} {str(name)!r} cannot be imported: {type(error).__name__}: {error}"
            raise ConfigError(problem, where=name.file, fix=_FIX) from error
    imports = _TRINITY_IMPORTS.get(module_name)
    if imports is not None and (registered := imports.registered(name.name)) is not None:
        return registered
    try:
        return getattr(module, name.name)
    except AttributeError:
        raise ConfigError(f"defines no {name.name!r}", where=name.file, fix=_FIX) from None


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.ImportFrom() | ast.Import():
            return [alias.asname or alias.name for alias in node.names]
        case _:
            return []


def _imported(node: ast.stmt) -> list[str]:
    """Returns the top packages imported by a statement; `.` for a relative import."""
    match node:
        case ast.Import():
            return [alias.name.partition(".")[0] for alias in node.names]
        case ast.ImportFrom():
            return ["." if node.level else str(node.module).partition(".")[0]]
        case _:
            return []


def imports_trinity(text: str) -> bool:
    """True if a file, which must be Python, imports a module of Trinity-RFT anywhere."""
    if trinity.PACKAGE not in text:
        return False
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) and trinity.PACKAGE in _imported(node):
            return True
    return False


def _check_trinity(name: SourceName, tree: ast.Module) -> None:
    """Raises ConfigError for an import of Trinity-RFT unknown to rftd, with the line of the file."""
    for node in ast.walk(tree):
        imports: list[tuple[str, list[str]]] = []
        if isinstance(node, ast.ImportFrom) and not node.level and trinity.is_trinity(str(node.module)):
            imports = [(str(node.module), [alias.name for alias in node.names])]
        elif isinstance(node, ast.Import):
            imports = [(alias.name, []) for alias in node.names if trinity.is_trinity(alias.name)]
        for module, names in imports:
            missing = trinity.unavailable(module, names)
            if missing is not None:
                raise ConfigError(
                    f"imports {missing} of Trinity-RFT, which rftd does not have",
                    where=f"{name.file}:{getattr(node, 'lineno', 0)}",
                    fix=trinity.alternatives(module),
                )


def _registered(node: ast.stmt) -> list[str]:
    """Returns the names in decorators `@WORKFLOWS.register_module(NAME)` of a class."""
    decorators = node.decorator_list if isinstance(node, ast.ClassDef) else []
    calls = [decorator for decorator in decorators if isinstance(decorator, ast.Call)]
    texts = [argument for call in calls for argument in (*call.args, *(word.value for word in call.keywords))]
    return [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]


def _is_installed(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False

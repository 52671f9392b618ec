"""Policy losses from Python source text submitted with an experiment, without a package.

`policy_loss_fn: ./my_losses.py:my_loss` names a function of fields of `LossTokens`, or a class with `per_token`.
Trainers run the text; the daemon reads the needs of the loss without running the text.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, cast

from rftd.ops.errors import ConfigError
from rftd.workers.learning.losses.policy_loss import LossTokens, PolicyLoss, TokenLoss
from rftd.workers.workflows.source import SourceName, check_source, load_class_text, passed_parameters

if TYPE_CHECKING:
    from torch import Tensor

_KIND: Final = "policy loss"
"""Kind of the object in error messages."""
_TOKENS: Final = "tokens"
"""Parameter with all tokens, a `LossTokens`."""
_PASSED: Final = (_TOKENS, *(tokens_field.name for tokens_field in fields(LossTokens)))
"""Parameters filled in a function of a source."""
_NEEDS: Final = {
    "old_logprobs": "needs_old_logprobs",
    "ref_logprobs": "needs_reference",
    "reference_kl": "needs_reference_kl",
    "pairs": "needs_pairs",
    "labels": "needs_labels",
}
"""The need implied by each parameter of a function."""
_SHAPE: Final = "return the loss of each trained token as a tensor, or the tensor with a mapping of figures"
"""Fix of errors about the value that a loss returns."""


def open_loss_source(name: SourceName, text: str, arguments: Mapping[str, Any]) -> PolicyLoss:
    """Runs the text, and returns its function or class as a policy loss.

    `arguments` are further parameters. Raises ConfigError if the source fails, or the arguments do not fit.
    """
    target = load_class_text(_KIND, name, text)
    if not inspect.isclass(target):
        passed = passed_parameters(_KIND, name, target, _PASSED, arguments)
        return LossFunction(name, target, passed, dict(arguments), **_needs_of_function(passed))
    try:
        loss: object = target(**arguments)
    except Exception as error:
        problem = f"{_KIND} {str(name)!r} does not take its arguments {dict(arguments)!r}: {error}"
        raise ConfigError(problem, where=name.file, fix="correct policy_loss_fn_args") from error
    if not callable(getattr(loss, "per_token", None)):
        raise ConfigError(f"{_KIND} {str(name)!r} has no method 'per_token'", where=name.file, fix="define it")
    return cast("PolicyLoss", loss)


def outlined_loss(name: SourceName, text: str) -> PolicyLoss:
    """Returns a stand-in with the needs written in the text: parameters of a function, or constants `needs_...` of a
    class. The text is parsed and not run.

    Raises ConfigError for a text without the name.
    """
    check_source(name, text)
    needs: dict[str, bool] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name.name:
            parameters = (*node.args.args, *node.args.kwonlyargs)
            needs = _needs_of_function(tuple(parameter.arg for parameter in parameters))
        elif isinstance(node, ast.ClassDef) and node.name == name.name:
            needs = dict(_constants(node))
    return OutlinedLoss(name, **{need: True for need in needs if needs[need] and need in _NEEDS.values()})


def _needs_of_function(parameters: tuple[str, ...]) -> dict[str, bool]:
    return {need: True for parameter, need in _NEEDS.items() if parameter in parameters}


def _constants(node: ast.ClassDef) -> list[tuple[str, bool]]:
    """Returns the constants true or false written in the body of a class."""
    constants: list[tuple[str, bool]] = []
    for statement in node.body:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        constant = getattr(statement, "value", None)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, bool):
            constants += [(target.id, constant.value) for target in targets if isinstance(target, ast.Name)]
    return constants


@dataclass(frozen=True, slots=True)
class OutlinedLoss:
    """The needs of a source's loss, where the text is not run."""

    name: SourceName
    needs_old_logprobs: bool = False
    needs_reference: bool = False
    needs_reference_kl: bool = False
    needs_pairs: bool = False
    needs_labels: bool = False

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Raises ConfigError: only a trainer runs the text."""
        raise ConfigError(f"{_KIND} {str(self.name)!r} runs in trainers only", where=self.name.file)


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A function of a source as a policy loss."""

    name: SourceName
    function: Callable[..., Any]
    passed: tuple[str, ...]
    arguments: dict[str, Any]
    needs_old_logprobs: bool = False
    needs_reference: bool = False
    needs_reference_kl: bool = False
    needs_pairs: bool = False
    needs_labels: bool = False

    def per_token(self, tokens: LossTokens) -> TokenLoss:
        """Calls the function with the fields named by its parameters. Raises ConfigError for an answer of another
        shape, and for an exit.
        """
        offered = {name: tokens if name == _TOKENS else getattr(tokens, name) for name in self.passed}
        try:
            answer = self.function(**offered, **self.arguments)
        except SystemExit as leaving:
            problem = f"{_KIND} {str(self.name)!r} exited with {leaving.code!r}"
            raise ConfigError(problem, where=self.name.file, fix="let it return") from leaving
        if isinstance(answer, TokenLoss):
            return answer
        loss, figures = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
        return TokenLoss(loss=self._tensor("a loss", loss, tokens), metrics=self._figures(figures, tokens))

    def _figures(self, figures: object, tokens: LossTokens) -> dict[str, Tensor]:
        if not isinstance(figures, Mapping):
            self._refuse(f"figures of type {type(figures).__name__}")
            return {}
        tensors: dict[str, Tensor] = {}
        for figure, numbers in figures.items():
            tensor = self._tensor(f"the figure {figure!r}", numbers, tokens).detach()
            # A single number is the same for all tokens: the mean over the batch weighs batches by their tokens.
            tensors[str(figure)] = tensor.expand_as(tokens.logprobs) if tensor.ndim == 0 else tensor
        return tensors

    def _tensor(self, noun: str, numbers: object, tokens: LossTokens) -> Tensor:
        if noun != "a loss" and isinstance(numbers, int | float):
            return tokens.logprobs.new_tensor(float(numbers))
        if not isinstance(numbers, type(tokens.logprobs.detach())):
            self._refuse(f"{noun} of type {type(numbers).__name__}")
        return cast("Tensor", numbers)

    def _refuse(self, subject: str) -> None:
        raise ConfigError(
            f"{_KIND} {str(self.name)!r} returned {subject}",
            field="algorithm.policy_loss_fn",
            where=self.name.file,
            fix=_SHAPE,
        )

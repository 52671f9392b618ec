"""`OfferedTools`: the tools of a call, independent of its API, and whether one must be called."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rftd.workers.generation.endpoint.answer_form import AnswerForm
from rftd.workers.generation.endpoint.call_error import CallError
from rftd.workers.generation.endpoint.tool_calls import Parameters, ToolForm


class FunctionSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """A callable function, shown completely to the template."""

    name: str
    """Name of the function."""
    description: str | None = None
    """Description for the model."""
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Shown to the template, without effect here."""


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool in the chat API's form, known to templates."""

    type: Literal["function"]
    """Always `function`."""
    function: FunctionSchema
    """The function."""


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The callable tools, and the rules for calling them."""

    schemas: tuple[ToolSchema, ...] = ()
    """The callable tools."""
    choice: Literal["none", "auto", "required"] | FunctionSchema = "auto"
    """`none`, `auto`, `required`, or the one tool to be called."""
    parallel: bool = True
    """True: an answer may have several calls."""

    @property
    def shown(self) -> str:
        """JSON list of the tools for the chat template; empty without tools."""
        return msgspec.json.encode(self.schemas).decode() if self.schemas else ""

    @property
    def parameters(self) -> Parameters:
        """JSON schema of each tool's arguments, by the tool's name."""
        return {schema.function.name: schema.function.parameters or {} for schema in self.schemas}

    def may_be_called(self, form: AnswerForm) -> bool:
        """True if the answer is searched for calls."""
        return bool(self.schemas) and self.choice != "none" and (form.auto or self.choice != "auto")

    def stops(self, form: ToolForm) -> tuple[str, ...]:
        """Returns the texts ending an answer limited to one call. An engine cannot stop at a special token as text."""
        return (form.closes,) if self.schemas and not self.parallel and form.closes and not form.special else ()

    def beginning(self, form: ToolForm) -> str:
        """Returns the forced beginning of the answer. Raises CallError if a required tool does not exist."""
        names = [schema.function.name for schema in self.schemas]
        if isinstance(self.choice, FunctionSchema):
            if self.choice.name not in names:
                tool_names = ", ".join(names) or "none"
                problem = f"tool_choice names {self.choice.name!r}; the tools are: {tool_names}"
                raise CallError(400, problem, param="tool_choice")
            return form.begin(self.choice.name)
        if self.choice != "required":
            return ""
        if not names:
            raise CallError(400, "tool_choice requires a call, but there are no tools", param="tool_choice")
        return form.begin(names[0] if len(names) == 1 else None)

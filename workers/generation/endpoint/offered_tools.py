"""`OfferedTools`: the tools of a call, in whichever API's words, and whether one of them must be called."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rftd.workers.generation.endpoint.answer_form import AnswerForm
from rftd.workers.generation.endpoint.call_error import CallError
from rftd.workers.generation.endpoint.tool_calls import Parameters, ToolForm


class FunctionSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """What can be called; the template is given all that is said of it."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSchema(msgspec.Struct, frozen=True):
    """A tool as the chat API has it: templates know this form."""

    type: Literal["function"]
    function: FunctionSchema


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """What may be called, and how."""

    schemas: tuple[ToolSchema, ...] = ()
    choice: Literal["none", "auto", "required"] | FunctionSchema = "auto"
    """A tool that is named must be called."""
    parallel: bool = True
    """Several calls may be made in one answer."""

    @property
    def shown(self) -> str:
        """A JSON list for the chat template; empty without any."""
        return msgspec.json.encode(self.schemas).decode() if self.schemas else ""

    @property
    def parameters(self) -> Parameters:
        """The arguments of each."""
        return {each.function.name: each.function.parameters or {} for each in self.schemas}

    def may_be_called(self, form: AnswerForm) -> bool:
        """True if calls are looked for in the answer."""
        return bool(self.schemas) and self.choice != "none" and (form.auto or self.choice != "auto")

    def stops(self, form: ToolForm) -> tuple[str, ...]:
        """The texts that end an answer that may hold one call. An engine cannot stop at a special token as text."""
        return (form.closes,) if self.schemas and not self.parallel and form.closes and not form.special else ()

    def beginning(self, form: ToolForm) -> str:
        """What the answer is made to begin with. Raises CallError if a tool is demanded that is not there."""
        names = [schema.function.name for schema in self.schemas]
        if isinstance(self.choice, FunctionSchema):
            if self.choice.name not in names:
                known = ", ".join(names) or "none"
                what = f"tool_choice names {self.choice.name!r}; the tools are: {known}"
                raise CallError(400, what, param="tool_choice")
            return form.begin(self.choice.name)
        if self.choice != "required":
            return ""
        if not names:
            raise CallError(400, "tool_choice demands a call, and there are no tools", param="tool_choice")
        return form.begin(names[0] if len(names) == 1 else None)

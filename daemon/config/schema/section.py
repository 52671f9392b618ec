"""`Section`, the base class of all sections of the experiment file, with the types and marks shared by fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from rftd.daemon.config.field_path import FieldPath
from rftd.daemon.config.grammar import EnvText, read_scalar
from rftd.streams.spec.declaration import ACTS, FieldEffect, InUnit, OlderWords

S = TypeVar("S", bound=msgspec.Struct)
"""Type of a declared struct."""
Count: TypeAlias = Annotated[int, Field(ge=1, le=10**9)]
"""Whole number of at least 1."""
Natural: TypeAlias = Annotated[int, Field(ge=0, le=10**9)]
"""Whole number of at least 0."""
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=10**9), InUnit("tokens")]
"""Number of tokens, at least 1."""
Steps: TypeAlias = Annotated[int, Field(ge=1, le=10**9), InUnit("steps")]
"""Number of steps, at least 1."""
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=10**9), InUnit("s")]
"""Duration in seconds, above 0."""
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""Fraction from 0 to 1."""
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
"""Seed of random numbers."""
Args: TypeAlias = dict[str, Any]
"""Arguments by name."""
_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
"""Bounds with equal names in msgspec and pydantic."""


class LocalPath:
    """Marks a field holding a path on the client's machine, or arguments with paths in `arguments`."""

    def __init__(self, *arguments: str) -> None:
        """Marks a path, or with `arguments` a mapping with paths under these names."""
        self.arguments = arguments


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, values are not converted, an empty section means all defaults."""

    # Strict: pydantic would otherwise read "4" as 4 and 1 as true, and a typing error would be accepted as a value.
    # Built all at once when the first file is read: building each section separately costs as much again.
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
    declaration: ClassVar[type[msgspec.Struct] | None] = None
    """The struct behind a section made by `declared`; None for other sections."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, content: Any, info: ValidationInfo) -> Any:
        """Prepares the content of a field: an environment variable's text becomes a number where needed, an absent
        section its defaults.
        """
        text, empty = _expects(cls, info.field_name or "")
        # An environment variable is always text: in a numeric field the text stands for a number.
        if isinstance(content, EnvText):
            return str(content) if text else read_scalar(content)
        # A key without content, for example above a section of comments only, means unset.
        if content is None:
            return None if empty is None else empty()
        if isinstance(content, dict) and None in content.values() and _holds_sections(cls, info.field_name or ""):
            return {key: {} if child is None else child for key, child in content.items()}
        return content


@cache
def _holds_sections(cls: type[Section], name: str) -> bool:
    """True for a mapping of sections under names chosen by the user."""
    content_types = get_args(cls.model_fields[name].annotation)[-1:]
    return any(isinstance(content_type, type) and issubclass(content_type, Section) for content_type in content_types)


@cache
def _expects(cls: type[Section], name: str) -> tuple[bool, type[dict[str, Any]] | type[list[Any]] | None]:
    """Returns whether the field accepts text, and the container type of a section, a mapping or a list."""
    annotation = cls.model_fields[name].annotation
    # Cached by class and field: a file has thousands of values, and walking an annotation is slow.
    members = set(_members(annotation))
    text = bool(members & {str, Any}) or any(isinstance(member, str) for member in members)
    if get_origin(annotation) is list:
        return text, list
    holds = get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, Section))
    return text, dict if holds else None


def _members(annotation: Any) -> Iterator[Any]:
    """Yields a type and the members of its unions, without the elements of lists and mappings."""
    if get_origin(annotation) in (dict, list):
        return
    yield annotation
    for member in get_args(annotation):
        yield from _members(member) if not isinstance(member, str) else iter((member,))


def harmless(default: Any, *, why: str = "", promises: bool = False) -> Any:
    """Declares a field without effect on training or sampling; writing another value than the default causes a warning
    with `why`.

    With `promises`, even the written default does, because it asks for something that does not happen.
    """
    return _marked(default, FieldEffect("harmless", why, promises=promises))


def refused(default: Any, *, why: str, fix: str = "leave it out", same_as: str = "") -> Any:
    """Declares an unsupported field affecting training or sampling; another value than the default causes an error with
    `why` and `fix`.

    `same_as` is a field that may state the refused field's meaning instead.
    """
    return _marked(default, FieldEffect("refused", why, fix, same_as))


def checked(default: Any, *, why: str) -> Any:
    """Declares a field without effect whose value is compared with the actual behaviour; a difference is reported with
    `why`.
    """
    return _marked(default, FieldEffect("checked", why))


def acts_later(default: Any, *, why: str) -> Any:
    """Declares a field acting outside the specification; `why` says where."""
    return _marked(default, FieldEffect(why=why))


def _marked(default: Any, mark: FieldEffect) -> Any:
    """Declares a field with a default and a mark."""
    extra: dict[str, Any] = {"mark": asdict(mark)}
    if isinstance(default, dict | list):
        return Field(default_factory=default.copy, json_schema_extra=extra)
    return Field(default=default, json_schema_extra=extra)


def section(kind: Callable[[], Any], *, mark: FieldEffect = ACTS) -> Any:
    """Declares a field holding a section whose fields all have defaults, so that a file may omit it.

    `mark` is the effect of every field in the section.
    """
    return Field(default_factory=kind, json_schema_extra={"mark": asdict(mark)})


def mark_of(field: FieldInfo) -> FieldEffect:
    """Returns the mark of a section's field: acting, harmless, refused or checked, with the reason."""
    extra = field.json_schema_extra
    return FieldEffect(**cast(dict[str, Any], extra["mark"])) if isinstance(extra, dict) and "mark" in extra else ACTS


def word(**older: str) -> BeforeValidator:
    """Returns a validator reading one of a few words in any case, and older synonyms for some of the words."""

    def read(content: Any) -> Any:
        if not isinstance(content, str):
            return content
        lowered = content.lower()
        return older.get(lowered, lowered)

    return BeforeValidator(read)


def argument_field(hint: Any, default: Any) -> tuple[Any, Any]:
    """Returns type and default of the field for an argument declared by a built-in extension; `...` means required."""
    descriptions = [meta.description for meta in get_args(hint) if isinstance(meta, msgspec.Meta) and meta.description]
    return _pydantic_type(hint), Field(default=default, description=descriptions[0] if descriptions else None)


def declared(kind: type[msgspec.Struct]) -> type[Section]:
    """Returns the section for a struct with declared fields (`rftd.streams.spec.declaration`)."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        effect = next((mark for mark in get_args(hint) if isinstance(mark, FieldEffect)), ACTS)
        extra: dict[str, Any] = {"mark": asdict(effect)}
        fields[field.name] = (_pydantic_type(hint), Field(default=_default(field), json_schema_extra=extra))
    derived = create_model(kind.__name__, __base__=Section, __doc__=kind.__doc__, **fields)
    derived.declaration = kind
    return derived


def _default(field: msgspec.structs.FieldInfo) -> Any:
    """Returns the default of a declared field, in pydantic's form; `...` for a required one."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    if field.required:
        return ...
    return list(field.default) if isinstance(field.default, tuple) else field.default


def as_section(attribute: msgspec.Struct) -> Section:
    """Returns a section made by `declared`, typed as its declaration for type checkers."""
    assert isinstance(attribute, Section), attribute
    return attribute


def as_declared(section: Section | msgspec.Struct, kind: type[S]) -> S:
    """Converts a section made by `declared` from `kind` into the struct."""
    settings = {name: getattr(section, name) for name in kind.__struct_fields__}
    return kind(
        **{name: tuple(setting) if isinstance(setting, list) else setting for name, setting in settings.items()}
    )


def _pydantic_type(hint: Any) -> Any:
    """Returns the type with bounds in pydantic's form, and words in any case."""
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        metas = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
        bounds = {name: bound for meta in metas for name in _BOUNDS if (bound := getattr(meta, name)) is not None}
        plain_marks = [mark for mark in marks if not isinstance(mark, msgspec.Meta)]
        older = [word(**mark.words) for mark in plain_marks if isinstance(mark, OlderWords)]
        return Annotated[(_pydantic_type(kind), Field(**bounds), *plain_marks, *older)]
    if get_origin(hint) is Literal:
        return Annotated[hint, word()]
    if get_origin(hint) is tuple:
        return _list_type(*get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, (_pydantic_type(member) for member in get_args(hint)))
    return hint


def _list_type(element: Any, *further_elements: Any) -> Any:
    """Returns the list type for a declared tuple, of any length if the second element is `...`."""
    length = None if further_elements == (...,) else 1 + len(further_elements)
    return Annotated[GenericAlias(list, (_pydantic_type(element),)), Field(min_length=length, max_length=length)]


def any_of(kinds: Mapping[str, type[Section]]) -> Any:
    """Returns the union type of section classes distinguished by their field `kind`."""
    # Discriminated by a function and not by the field: sections convert their fields before validation.
    union = reduce(or_, (Annotated[section_type, Tag(kind)] for kind, section_type in kinds.items()))
    return Annotated[union, Discriminator(_kind)]


def _kind(node: Any) -> Any:
    """Returns the `kind` of a section, written or validated."""
    return node.get("kind") if isinstance(node, dict) else getattr(node, "kind", None)


def _url(content: Any) -> Any:
    """Validates a text, or `{env: NAME}`."""
    named = isinstance(content, dict) and set(content) == {"env"} and isinstance(content["env"], str)
    if content is None or isinstance(content, str) or named:
        return str(content) if isinstance(content, str) else content
    raise PydanticCustomError("url_type", "expected text, or {{env: NAME}}")


def _source(content: Any) -> Any:
    """Validates a text, a list of texts, or `{env: NAME}`."""
    if isinstance(content, list) and all(isinstance(text, str) for text in content):
        return [str(text) for text in content]
    try:
        return _url(content)
    except PydanticCustomError:
        raise PydanticCustomError("source_type", "expected text, a list of texts, or {{env: NAME}}") from None


def _number_or_text(content: Any) -> Any:
    """Validates a number or a text."""
    if isinstance(content, str | int | float) and not isinstance(content, bool):
        return content
    raise PydanticCustomError("number_or_text", "expected a number or text")


NumberOrText: TypeAlias = Annotated[Any, PlainValidator(_number_or_text)]
"""A number or text: a union of types would report a separate error for each, under the name of no field."""
Url: TypeAlias = Annotated[Any, PlainValidator(_url)]
"""Text, or `{env: NAME}` for a URL with a password; also used for an `api_key`."""
Source: TypeAlias = Annotated[Any, PlainValidator(_source)]
"""Data of a taskset: a path, a list of paths, or a database URL, possibly `{env: NAME}`."""


def without_effect(model: Section, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any, FieldEffect]]:
    """Yields every ineffective field written by the user with a differing value, together with the value and mark."""
    for name in sorted(model.model_fields_set, key=list(type(model).model_fields).index):
        field = type(model).model_fields[name]
        mark = mark_of(field)
        content = getattr(model, name)
        if mark.effect in ("harmless", "refused"):
            # A file spelling out a default usually requests nothing that rftd fails to do.
            if mark.promises or content != field.get_default(call_default_factory=True):
                yield (*path, name), content, mark
            continue
        children: Iterable[tuple[Any, Any]] = ()
        if isinstance(content, Section):
            yield from without_effect(content, (*path, name))
        elif isinstance(content, list):
            children = enumerate(content)
        elif isinstance(content, dict):
            children = content.items()
        for key, child in children:
            if isinstance(child, Section):
                yield from without_effect(child, (*path, name, key))


def written_fields(model: Section, path: FieldPath = ()) -> Iterator[tuple[FieldPath, bool]]:
    """Yields every field written by the user, outside lists and mappings, and whether the value is the default."""
    for name in sorted(model.model_fields_set, key=list(type(model).model_fields).index):
        content = getattr(model, name)
        if isinstance(content, Section):
            yield from written_fields(content, (*path, name))
        else:
            default = type(model).model_fields[name].get_default(call_default_factory=True)
            yield (*path, name), content == default

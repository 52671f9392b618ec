"""`Section` is the base of every section of the experiment file; here are the types and marks that fields share."""

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
Count: TypeAlias = Annotated[int, Field(ge=1, le=10**9)]
Natural: TypeAlias = Annotated[int, Field(ge=0, le=10**9)]
Tokens: TypeAlias = Annotated[int, Field(ge=1, le=10**9), InUnit("tokens")]
Steps: TypeAlias = Annotated[int, Field(ge=1, le=10**9), InUnit("steps")]
Seconds: TypeAlias = Annotated[float, Field(gt=0, le=10**9), InUnit("s")]
Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Seed: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
Args: TypeAlias = dict[str, Any]
_BOUNDS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
"""Bounds that msgspec and pydantic call by the same names."""


class LocalPath:
    """Marks a field whose text is a path on the client's machine, or arguments of which `argument` is one."""

    def __init__(self, argument: str = "") -> None:
        self.argument = argument


class Section(BaseModel):
    """A mapping of the file: unknown keys are errors, values are not converted, an empty section is all defaults."""

    # Strict: pydantic would otherwise read "4" as 4 and 1 as true, and a typing error would pass for a value.
    # Built when the first file is read, the whole of it at once: by itself each section costs as much again.
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
    declaration: ClassVar[type[msgspec.Struct] | None] = None
    """The struct that the section is made of, if it is."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        text, empty = _expects(cls, info.field_name or "")
        # A variable of the environment is always text: in a numeric field it stands for the number that it
        # spells.
        if isinstance(value, EnvText):
            return str(value) if text else read_scalar(value)
        # A key with nothing behind it, such as a section of comments alone, holds nothing.
        if value is None:
            return None if empty is None else empty()
        if isinstance(value, dict) and None in value.values() and _holds_sections(cls, info.field_name or ""):
            return {key: {} if held is None else held for key, held in value.items()}
        return value


@cache
def _holds_sections(cls: type[Section], name: str) -> bool:
    """True of a mapping of sections by names of the user's."""
    held = get_args(cls.model_fields[name].annotation)[-1:]
    return any(isinstance(each, type) and issubclass(each, Section) for each in held)


@cache
def _expects(cls: type[Section], name: str) -> tuple[bool, type[dict[str, Any]] | type[list[Any]] | None]:
    """True if the field takes text, and the kind of what it holds if it is a section, a mapping or a list."""
    annotation = cls.model_fields[name].annotation
    # Cached by class and field: a file has thousands of values, and an annotation is walked slowly.
    members = set(_members(annotation))
    text = bool(members & {str, Any}) or any(isinstance(member, str) for member in members)
    if get_origin(annotation) is list:
        return text, list
    holds = get_origin(annotation) is dict or (isinstance(annotation, type) and issubclass(annotation, Section))
    return text, dict if holds else None


def _members(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) in (dict, list):
        return
    yield annotation
    for part in get_args(annotation):
        yield from _members(part) if not isinstance(part, str) else iter((part,))


def harmless(default: Any, *, why: str = "", promises: bool = False) -> Any:
    """A field without effect on what is trained or sampled; set to something else, it is a warning."""
    return _marked(default, FieldEffect("harmless", why, promises=promises))


def refused(default: Any, *, why: str, fix: str = "leave it out", same_as: str = "") -> Any:
    """A field that would change what is trained or sampled, and cannot yet; set to something else, it is an error."""
    return _marked(default, FieldEffect("refused", why, fix, same_as))


def checked(default: Any, *, why: str) -> Any:
    """A field that changes nothing and is held against what is: where it says something else, that is said."""
    return _marked(default, FieldEffect("checked", why))


def acts_later(default: Any, *, why: str) -> Any:
    """A field that acts where the specification does not say it: `why` says where."""
    return _marked(default, FieldEffect(why=why))


def _marked(default: Any, mark: FieldEffect) -> Any:
    extra: dict[str, Any] = {"mark": asdict(mark)}
    if isinstance(default, dict | list):
        return Field(default_factory=default.copy, json_schema_extra=extra)
    return Field(default=default, json_schema_extra=extra)


def section(kind: Callable[[], Any], *, mark: FieldEffect = ACTS) -> Any:
    """A section whose fields all have defaults; a mark holds for each of them."""
    return Field(default_factory=kind, json_schema_extra={"mark": asdict(mark)})


def mark_of(field: FieldInfo) -> FieldEffect:
    """The mark of a field of a section."""
    extra = field.json_schema_extra
    return FieldEffect(**cast(dict[str, Any], extra["mark"])) if isinstance(extra, dict) and "mark" in extra else ACTS


def word(**older: str) -> BeforeValidator:
    """Reads one of a few words in any case, and older words for some of them."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        lowered = value.lower()
        return older.get(lowered, lowered)

    return BeforeValidator(read)


def argument_field(hint: Any, default: Any) -> tuple[Any, Any]:
    """Type and default of the field for an argument that an extension of ours declares; `...`: it must be given."""
    said = [each.description for each in get_args(hint) if isinstance(each, msgspec.Meta) and each.description]
    return _readable(hint), Field(default=default, description=said[0] if said else None)


def declared(kind: type[msgspec.Struct]) -> type[Section]:
    """The section of a struct whose annotations declare its fields (`rftd.streams.spec.declaration`)."""
    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        effect = next((mark for mark in get_args(hint) if isinstance(mark, FieldEffect)), ACTS)
        extra: dict[str, Any] = {"mark": asdict(effect)}
        fields[field.name] = (_readable(hint), Field(default=_default(field), json_schema_extra=extra))
    derived = create_model(kind.__name__, __base__=Section, __doc__=kind.__doc__, **fields)
    derived.declaration = kind
    return derived


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    if field.required:
        return ...
    return list(field.default) if isinstance(field.default, tuple) else field.default


def as_section(attribute: msgspec.Struct) -> Section:
    """A section that `declared` made, in whose place type checkers see its declaration."""
    assert isinstance(attribute, Section), attribute
    return attribute


def as_declared(section: Section | msgspec.Struct, kind: type[S]) -> S:
    """The struct of a section that `declared` made of `kind`."""
    values = {name: getattr(section, name) for name in kind.__struct_fields__}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def _readable(hint: Any) -> Any:
    """The type with its bounds as pydantic takes them, and words in any case."""
    if get_origin(hint) is Annotated:
        kind, *marks = get_args(hint)
        metas = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
        bounds = {name: bound for meta in metas for name in _BOUNDS if (bound := getattr(meta, name)) is not None}
        plain_marks = [mark for mark in marks if not isinstance(mark, msgspec.Meta)]
        older = [word(**mark.words) for mark in plain_marks if isinstance(mark, OlderWords)]
        return Annotated[(_readable(kind), Field(**bounds), *plain_marks, *older)]
    if get_origin(hint) is Literal:
        return Annotated[hint, word()]
    if get_origin(hint) is tuple:
        return _listed(*get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, (_readable(each) for each in get_args(hint)))
    return hint


def _listed(item: Any, *others: Any) -> Any:
    """The type of a list for which a declaration has a tuple, of any length if `...` is the second of its kinds."""
    length = None if others == (...,) else 1 + len(others)
    return Annotated[GenericAlias(list, (_readable(item),)), Field(min_length=length, max_length=length)]


def any_of(kinds: Mapping[str, type[Section]]) -> Any:
    """The type of a section of any of these kinds, told apart by its field `kind`."""
    # By a function and not by the field itself: sections read their fields before they validate them.
    union = reduce(or_, (Annotated[each, Tag(kind)] for kind, each in kinds.items()))
    return Annotated[union, Discriminator(_kind)]


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


def _url(value: Any) -> Any:
    named = isinstance(value, dict) and set(value) == {"env"} and isinstance(value["env"], str)
    if value is None or isinstance(value, str) or named:
        return str(value) if isinstance(value, str) else value
    raise PydanticCustomError("url_type", "expected text, or {{env: NAME}}")


def _source(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return [str(text) for text in value]
    try:
        return _url(value)
    except PydanticCustomError:
        raise PydanticCustomError("source_type", "expected text, a list of texts, or {{env: NAME}}") from None


def _number_or_text(value: Any) -> Any:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    raise PydanticCustomError("number_or_text", "expected a number or text")


NumberOrText: TypeAlias = Annotated[Any, PlainValidator(_number_or_text)]
"""Either of the two: of a union of types each would be an error of its own, under a name that is no field."""
Url: TypeAlias = Annotated[Any, PlainValidator(_url)]
"""Text, or `{env: NAME}` where it holds a password; also for an `api_key`."""
Source: TypeAlias = Annotated[Any, PlainValidator(_source)]
"""The data of a taskset: a path, a list of paths, or the URL of a database, which may be `{env: NAME}`."""


def without_effect(model: Section, path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any, FieldEffect]]:
    """Every field without effect that the user wrote and that asks for something, with its value and mark."""
    for name in sorted(model.model_fields_set, key=list(type(model).model_fields).index):
        field = type(model).model_fields[name]
        mark = mark_of(field)
        value = getattr(model, name)
        if mark.effect in ("harmless", "refused"):
            # A file that spells out a default asks, as a rule, for nothing that rftd fails to do.
            if mark.promises or value != field.get_default(call_default_factory=True):
                yield (*path, name), value, mark
            continue
        held: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, Section):
            yield from without_effect(value, (*path, name))
        elif isinstance(value, list):
            held = enumerate(value)
        elif isinstance(value, dict):
            held = value.items()
        for key, item in held:
            if isinstance(item, Section):
                yield from without_effect(item, (*path, name, key))


def written_fields(model: Section, path: FieldPath = ()) -> Iterator[tuple[FieldPath, bool]]:
    """Every field that the user wrote, outside of lists and mappings, and whether its value is the default."""
    for name in sorted(model.model_fields_set, key=list(type(model).model_fields).index):
        value = getattr(model, name)
        if isinstance(value, Section):
            yield from written_fields(value, (*path, name))
        else:
            default = type(model).model_fields[name].get_default(call_default_factory=True)
            yield (*path, name), value == default

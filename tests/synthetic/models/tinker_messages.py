"""The protobuf messages of the Tinker protocol, as far as the product's requests go, without the package.

Numbers and types are those of `tinker/proto/tinker_public_pb2.py`, in which 0.25 and 0.38 agree on every field here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from numpy.typing import NDArray

PROTOBUF: Final = "application/x-protobuf"
STOP_REASONS: Final = ("stop", "length")
"""By their numbers."""
FLOAT32: Final = 1
INT64: Final = 2
_NUMPY: Final = {FLOAT32: np.float32, INT64: np.int64}

_MESSAGES: Final = {
    "SampleResponse": ("1 sequences SampledSequence*", "2 prompt_logprobs bytes", "4 prompt_cache_hit_tokens int32"),
    "SampledSequence": ("1 stop_reason int32", "2 tokens bytes", "3 logprobs bytes"),
    "ForwardBackwardOutput": (
        "1 loss_fn_output_type string",
        "2 loss_fn_outputs ArrayRecord*",
        "3 metrics double{}",
    ),
    "ArrayRecord": ("1 type_tag string", "2 fields BatchedTensor{}", "3 num_datums int64"),
    "BatchedTensor": ("1 data bytes", "2 offsets bytes", "3 dtype int32", "4 trailing_shape int64*"),
    "ForwardBackwardRequest": (
        "1 model_id string",
        "2 seq_id int32",
        "3 data Datum*",
        "4 loss_fn string",
        "5 loss_fn_config double{}",
        "6 forward_only bool",
    ),
    "Datum": ("1 model_input Chunk*", "2 loss_fn_inputs Tensor{}"),
    "Chunk": ("1 encoded_text EncodedTextChunk",),
    "EncodedTextChunk": ("1 tokens bytes",),
    "Tensor": ("1 dense bytes", "3 dtype int32", "4 shape int64*"),
}
"""Fields by message: number, name and type; `*` is a list, `{}` a map from strings. An enum is read as an int32."""


def _built() -> dict[str, Any]:
    field = descriptor_pb2.FieldDescriptorProto
    scalars = {each: getattr(field, f"TYPE_{each.upper()}") for each in ("bytes", "int32", "int64", "string", "double")}
    scalars["bool"] = field.TYPE_BOOL
    package = "rftd_tests"
    file = descriptor_pb2.FileDescriptorProto(name="rftd_tests_tinker.proto", package=package, syntax="proto3")

    def add(message: Any, number: int, name: str, kind: str, label: int) -> None:
        made = message.field.add(name=name, number=number, label=label)
        if kind in scalars:
            made.type = scalars[kind]
        else:
            made.type = field.TYPE_MESSAGE
            made.type_name = f".{package}.{kind}"

    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for each in fields:
            number, called, kind = each.split()
            bare = kind.rstrip("*{}")
            if not kind.endswith("{}"):
                add(
                    message,
                    int(number),
                    called,
                    bare,
                    field.LABEL_REPEATED if kind[-1] == "*" else field.LABEL_OPTIONAL,
                )
                continue
            entry = "".join(part.title() for part in called.split("_")) + "Entry"
            pairs = message.nested_type.add(name=entry)
            pairs.options.map_entry = True
            add(pairs, 1, "key", "string", field.LABEL_OPTIONAL)
            add(pairs, 2, "value", bare, field.LABEL_OPTIONAL)
            add(message, int(number), called, f"{name}.{entry}", field.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in _MESSAGES
    }


_CLASSES: Final = _built()


def new(name: str) -> Any:
    """An empty message."""
    return _CLASSES[name]()


def read(name: str, body: bytes) -> Any:
    """The message in a body. Raises google.protobuf.message.DecodeError for what is none."""
    return _CLASSES[name].FromString(body)


def batched(arrays: list[NDArray[Any]]) -> Any:
    """The arrays as one tensor."""
    made = new("BatchedTensor")
    made.data = b"".join(each.tobytes() for each in arrays)
    made.offsets = np.cumsum([0, *(each.nbytes for each in arrays)]).astype(np.int64).tobytes()
    made.dtype = INT64 if arrays and arrays[0].dtype == np.int64 else FLOAT32
    return made


def unbatched(tensor: Any) -> list[list[float]]:
    """The rows of such a tensor."""
    offsets = np.frombuffer(tensor.offsets, np.int64)
    kind = _NUMPY[tensor.dtype]
    return [np.frombuffer(tensor.data[start:end], kind).tolist() for start, end in pairwise(offsets)]

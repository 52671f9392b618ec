"""Decoders that several threads want at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import msgspec
import pytest

from rftd.ops.decoding import UNREADABLE, converted, json_decoder, msgpack_decoder

THREADS = """
import sys, threading, types

import msgspec
from rftd.ops.decoding import converted, json_decoder, msgpack_decoder

sys.setswitchinterval(1e-6)


def fresh(number):
    '''A class that msgspec has never seen, of classes that it has never seen.'''
    text = "from __future__ import annotations\\nimport msgspec\\n"
    for depth in range(12):
        inner = f"K{depth - 1}" if depth else "int"
        fields = "".join(f"    f{each}: dict[str, list[{inner}]] = {{}}\\n" for each in range(6))
        text += f"class K{depth}(msgspec.Struct):\\n{fields}"
    module = sys.modules[f"fresh{number}"] = types.ModuleType(f"fresh{number}")
    exec(text, module.__dict__)
    return module.K11


def read(kind, way, gate, seen):
    gate.wait()
    if way == 0:
        seen.append(json_decoder(kind).decode(b'{"f0": {"a": [{}]}}'))
    elif way == 1:
        seen.append(msgpack_decoder(kind).decode(msgspec.msgpack.encode({"f0": {"a": [{}]}})))
    else:
        seen.append(converted({"f0": {"a": [{}]}}, kind))


for number in range(30):
    kind, gate, seen = fresh(number), threading.Barrier(8), []
    threads = [threading.Thread(target=read, args=(kind, each % 3, gate, seen)) for each in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 and all(each == seen[0] for each in seen)
print("fine")
"""


class Point(msgspec.Struct):
    x: int
    name: str = ""


def test_threads_that_read_a_new_class_at_once_do_not_end_the_process() -> None:
    """A daemon that took up two experiments, each with a snapshot, died of it."""
    done = subprocess.run([sys.executable, "-P", "-c", THREADS], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]


def test_each_reads_its_type_and_is_made_once() -> None:
    assert json_decoder(Point).decode(b'{"x": 1}') == Point(1)
    assert msgpack_decoder(list[Point]).decode(msgspec.msgpack.encode([{"x": 2}])) == [Point(2)]
    assert json_decoder(Point) is json_decoder(Point)


@pytest.mark.parametrize("value", [{"x": "1"}, {}, [1]])
def test_what_is_none_is_refused(value: Sequence[object] | dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        converted(value, Point)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"x": "1"}',
        b'{"x": 1, "name": "\xff"}',
        b'{"x": 1, "more": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
def test_json_that_is_no_value_of_its_kind_is_unreadable(text: bytes) -> None:
    with pytest.raises(UNREADABLE):
        json_decoder(Point).decode(text)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x90", b"\x82\xa1x\x01\xa4name\xa1\xff", b"\x82\xa1x\x01\xa4more" + b"\x91" * 5000 + b"\xc0"],
)
def test_msgpack_that_is_no_value_of_its_kind_is_unreadable(data: bytes) -> None:
    with pytest.raises(UNREADABLE):
        msgpack_decoder(Point).decode(data)


def test_text_is_a_number_only_where_that_is_asked_for() -> None:
    assert converted({"x": "1"}, Point, strict=False) == Point(1)

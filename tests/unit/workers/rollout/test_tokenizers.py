"""Tokenizers: the one of bytes, and the one of a model folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rftd.ops.errors import DataError
from rftd.workers.datasets.byte_tokenizer import EOS, ByteTokenizer
from rftd.workers.datasets.hf_tokenizer import open_tokenizer
from rftd.workers.datasets.message import Message, parse_messages
from rftd.workers.datasets.template_bound import bounded

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
CHAT = (Message("user", "hi"),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A character tokenizer, written as transformers writes one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = {character: index for index, character in enumerate("0123456789+=[]<> abcdefghijklmnopqrstuvwxyz")}
    inner = Tokenizer(models.WordLevel({"<eos>": len(characters), "<unk>": len(characters) + 1, **characters}, "<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    inner.decoder = decoders.Fuse()
    path = tmp_path_factory.mktemp("model")
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>").save_pretrained(str(path))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, len(characters)], "do_sample": True}))
    return path


def test_bytes_round_trip_and_drop_what_is_no_byte() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([*tokenizer.encode("héllo"), EOS, 99999]) == "héllo"
    assert tokenizer.decode([0xFF]) == "\ufffd"
    assert tokenizer.chat_text(CHAT, generation_prompt=True) == "user: hi\nassistant: "
    assert tokenizer.chat_text(CHAT, generation_prompt=False) == "user: hi\n"


def test_the_tokenizer_of_a_model_folder(folder: Path) -> None:
    tokenizer = open_tokenizer(str(folder), chat_template=TEMPLATE)
    ids = tokenizer.encode("12+3=")
    assert len(ids) == 5
    assert tokenizer.eos_ids == (len("0123456789+=[]<> abcdefghijklmnopqrstuvwxyz"), 3)
    assert tokenizer.decode([*ids, tokenizer.eos_ids[0]]) == "12+3="
    assert tokenizer.decode([*ids, tokenizer.eos_ids[0]], special=True) == "12+3=<eos>"
    assert tokenizer.chat_text(CHAT, generation_prompt=True) == "[user]hi>"
    assert tokenizer.chat_text(CHAT, generation_prompt=False) == "[user]hi"


def test_a_model_without_a_chat_template_says_what_to_do(folder: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)no chat template.*prompt_type: raw"):
        open_tokenizer(str(folder)).chat_text(CHAT, generation_prompt=True)


def test_a_template_that_fails_is_named(folder: Path) -> None:
    tokenizer = open_tokenizer(str(folder), chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(DataError, match=r"roles \['user'\]: roles must alternate"):
        tokenizer.chat_text(CHAT, generation_prompt=True)


def test_folders_without_a_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)'Qwen/Qwen2' does not exist.*local folders"):
        open_tokenizer("Qwen/Qwen2")
    with pytest.raises(DataError, match=r"(?s)holds no tokenizer.*tokenizer\.json"):
        open_tokenizer(str(tmp_path))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(DataError, match=r"generation_config\.json is malformed"):
        open_tokenizer(str(tmp_path))


def test_an_empty_tokenizer_that_transformers_makes_of_nothing_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(DataError, match=r"(?s)no tokenizer in the model folder.*tokenizer\.json"):
        open_tokenizer(str(tmp_path))


def test_messages_are_a_list_or_its_json() -> None:
    assert parse_messages([{"role": "user", "content": "hi"}]) == CHAT
    assert parse_messages('[{"role": "user", "content": "hi"}]') == CHAT
    for wrong in ("hi", 3, {}, [], [{"role": "user", "content": None}]):
        with pytest.raises(ValueError, match="are "):
            parse_messages(wrong)


def test_a_message_keeps_what_templates_may_ask_for() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}], "name": None}
    (message,) = parse_messages([call])
    assert message.content == ""
    assert hash(message)
    assert message.as_dict() == {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}


def test_nothing_here_imports_transformers_or_torch_before_a_tokenizer_is_opened() -> None:
    code = (
        "import sys, rftd.workers.workflows.runner\n"
        "import rftd.workers.datasets.train_row, rftd.workers.datasets.hf_tokenizer\n"
        "print([name for name in ('torch', 'transformers', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=240)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


LOOPS = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [LOOPS + "{% endfor %}", LOOPS + "{{ b }}{% endfor %}x"])
def test_a_template_of_nested_loops_is_refused_after_so_many_steps(folder: Path, template: str) -> None:
    tokenizer = open_tokenizer(str(folder), chat_template=template)
    with pytest.raises(DataError, match="takes more than 1000000 steps"):
        tokenizer.chat_text(CHAT, generation_prompt=True)
    tokenizer = open_tokenizer(str(folder), chat_template=f"{{% generation %}}x{{% endgeneration %}}{template}")
    with pytest.raises(DataError, match="takes more than 1000000 steps"):
        tokenizer.marked_text(CHAT)


def test_a_template_is_bounded_by_its_own_steps_alone() -> None:
    """What is around it, a debugger's trace too, stays as it was."""
    environment = ImmutableSandboxedEnvironment()
    template = environment.from_string("{% for a in range(40) %}{{ a }}{% endfor %}")
    traced: list[str] = []

    def trace(frame: FrameType, event: str, argument: object) -> None:
        traced.append(event)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with bounded(1000):
            text = template.render()
            for _ in range(1000):
                pass
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert text.endswith("3839")
    with pytest.raises(DataError, match="more than 20 steps"), bounded(20):
        template.render()
    assert sys.gettrace() is before

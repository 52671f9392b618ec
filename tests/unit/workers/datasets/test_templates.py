"""Rows and rollouts in the templates and tokenizers that people have: the ids are those that transformers gives.

Twelve forms: with a beginning or without, with ends of several kinds, with a system message or a place for it in the
user's, with thoughts, tools and trimmed texts; over tokenizers of characters and of merged bytes, some of which put a
beginning before a text, or an end behind it.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rftd.ops.errors import DataError
from rftd.streams.spec.sections import Format
from rftd.streams.spec.spec import AlgorithmSpec, ModelSpec, SamplingSpec, StageSpec, TasksetSpec
from rftd.workers.datasets.hf_tokenizer import open_tokenizer
from rftd.workers.datasets.message import Message
from rftd.workers.datasets.stage_tokenizer import place_template
from rftd.workers.datasets.train_row import TrainRow
from rftd.workers.datasets.train_rows import make_train_rows
from rftd.workers.generation.model import Model


def template(turn: str, opening: str, *, first: str = "{{ bos_token }}") -> str:
    """A chat template of what stands first, each turn, and what opens the assistant's."""
    return f"{first}{{% for m in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{opening}{{% endif %}}"


CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
GOOD = "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}"
INSTRUCTIONS = (
    "{% if m.role == 'system' %}<<SYS>>{{ m.content }}<</SYS>>{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }} {{ eos_token }}{% endif %}"
)
LAST_THOUGHT = (
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
)
NO_THOUGHT = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
ENDED = "<|{{ m.role }}|>{{ m.content }}{{ eos_token if m.role == 'assistant' }}"
MARKED = "<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}"
MARKED += "{% else %}{{ m.content }}{% endif %}"
TURN = "<|start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|end|>\n"
TEMPLATES = {
    "chatml": template(CHATML, "<|im_start|>assistant\n", first=""),
    "chatml with a system message of its own": template(CHATML, "<|im_start|>assistant\n", first=GOOD),
    "headers, trimmed": template("<|{{ m.role }}|>\n\n{{ m.content | trim }}<|eot|>", "<|assistant|>\n\n"),
    "instructions": template(INSTRUCTIONS, ""),
    "turns": template(TURN, "<|start|>model\n"),
    "ends of the sequence": template("<|{{ m.role }}|>\n{{ m.content + eos_token }}\n", "<|assistant|>\n", first=""),
    "no end": template("{{ m.role | upper }}: {{ m.content }} ", "ASSISTANT: ", first=""),
    "thoughts opened": template(ENDED, "<|assistant|><think>\n"),
    "thoughts of the last": template(LAST_THOUGHT, "<|im_start|>assistant\n" + NO_THOUGHT, first=""),
    "tools": template(
        ENDED, "<|assistant|>", first="{{ bos_token }}{% if tools %}<|system|>{{ tools | tojson }}{% endif %}"
    ),
    "marks": template(MARKED, "<|assistant|>"),
    "marks without the end": template(
        MARKED.replace(" + eos_token }}{% endgeneration %}", " }}{% endgeneration %}{{ eos_token }}"), "<|assistant|>"
    ),
}
SPECIAL = ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|start|>", "<|end|>"]
SPECIAL += ["<|user|>", "<|assistant|>", "<|system|>"]
FORMS = ("", "<bos> $A", "$A <eos>", "<bos> $A <eos>")
"""The special tokens that a tokenizer puts around a bare text."""
ASK = {"role": "user", "content": "2+2? say"}
TOLD = {"role": "system", "content": "Add."}
ANSWER = "<think>\ntwo and two\n</think>\n\nfour"
TOOLS = [{"name": "add", "parameters": {}}]


def merged(form: str) -> PreTrainedTokenizerFast:
    """A tokenizer of merged bytes."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(["two and two is four, say", "user assistant system think"] * 50, trainer)
    ids = [("<bos>", 1), ("<eos>", 2)]
    if form:
        inner.post_processor = processors.TemplateProcessing(single=form, pair=None, special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")  # type: ignore[no-untyped-call]


class Folder:
    """A model folder with a tokenizer, seen by transformers and by us."""

    def __init__(self, path: Path, number: int, name: str) -> None:
        tokenizer = merged(FORMS[number % len(FORMS)])
        tokenizer.save_pretrained(path)
        ends = [2, *(tokenizer.convert_tokens_to_ids(end) for end in ("<|im_end|>", "<|eot|>", "<|end|>"))]
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        self.path = path
        self.ends = ends
        self.template = TEMPLATES[name]
        self.theirs: Any = AutoTokenizer.from_pretrained(path)
        self.ours = open_tokenizer(str(path), chat_template=self.template)

    def prompt(self, messages: list[dict[str, str]], **variables: Any) -> list[int]:
        """The ids that transformers asks a model with."""
        return list(
            self.theirs.apply_chat_template(
                messages,
                chat_template=self.template,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
                **variables,
            )
        )

    def answer(self, messages: list[dict[str, str]], said: str, **variables: Any) -> list[int]:
        """The ids that transformers has behind that prompt, up to the end of the turn."""
        render = self.theirs.apply_chat_template
        asked = render(messages, chat_template=self.template, add_generation_prompt=True, tokenize=False, **variables)
        answered = [*messages, {"role": "assistant", "content": said}]
        whole = render(answered, chat_template=self.template, tokenize=False, **variables)
        assert whole.startswith(asked)
        ids = list(self.theirs.encode(whole[len(asked) :], add_special_tokens=False))
        last = max((place for place, token in enumerate(ids) if token in self.ends), default=None)
        return [*ids, 2] if last is None else ids[: last + 1]

    def rows(self, record: dict[str, Any], schema: str, **form: Any) -> tuple[TrainRow, ...]:
        """The rows that we train on."""
        spec = TasksetSpec(name="t", path="rows.jsonl", format=Format(**form), schema=schema)
        return make_train_rows(record, spec=spec, row=0, tokenizer=self.ours, max_model_len=400)


@pytest.fixture(params=range(len(TEMPLATES)), ids=list(TEMPLATES))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(tmp_path, request.param, list(TEMPLATES)[request.param])


def halves(row: TrainRow) -> tuple[list[int], list[int]]:
    ids = row.tokens.tolist()
    assert row.loss_mask.all()
    return ids[: row.prompt_tokens], ids[row.prompt_tokens :]


@pytest.mark.parametrize("system", [False, True], ids=["", "system"])
def test_rows_have_the_ids_that_transformers_gives(folder: Folder, system: bool) -> None:
    before = [TOLD, ASK] if system else [ASK]
    want = (folder.prompt(before), folder.answer(before, ANSWER))
    other = (want[0], folder.answer(before, "<think>\n</think>\n\nfive"))
    texts: dict[str, Any] = {"q": ASK["content"], "a": ANSWER, "bad": "<think>\n</think>\n\nfive", "ok": True}
    plain: dict[str, Any] = {
        "prompt_type": "plaintext",
        "prompt_key": "q",
        "response_key": "a",
        "system_prompt": "Add." if system else None,
    }
    said = {"role": "assistant", "content": ANSWER}
    wrong = {"role": "assistant", "content": "<think>\n</think>\n\nfive"}
    for record, form in (
        (texts, plain),
        ({"m": [*before, said]}, {"messages_key": "m"}),
        ({"m": [*before, said]}, {"messages_key": "m", "enable_concatenated_multi_turn": True}),
    ):
        (row,) = folder.rows(record, "sft", **form)
        assert halves(row) == want, form
    for record, form in (
        (texts, plain | {"chosen_key": "a", "rejected_key": "bad"}),
        ({"m": before, "chosen": said, "rejected": [wrong]}, {"messages_key": "m"}),
        ({"chosen": [*before, said], "rejected": [*before, wrong]}, {}),
    ):
        assert [halves(row) for row in folder.rows(record, "dpo", **form)] == [want, other], form
    for record, form in (
        (texts, plain | {"completion_key": "a", "label_key": "ok"}),
        ({"m": before, "completion": said, "label": True}, {"messages_key": "m"}),
    ):
        (row,) = folder.rows(record, "kto", **form)
        assert halves(row) == want, form
    whole = folder.theirs.apply_chat_template(
        [*before, said], chat_template=folder.template, tokenize=True, return_dict=False
    )
    (row,) = folder.rows({"m": [*before, said]}, "cpt", messages_key="m")
    assert row.tokens.tolist() == [*whole, *([] if whole[-1] in folder.ends else [2])]


def test_a_rollout_and_the_exported_folder_ask_with_the_same_ids(folder: Folder, tmp_path: Path) -> None:
    spec = ModelSpec(
        path=str(folder.path),
        chat_template=folder.template,
        max_model_len=400,
        max_prompt_tokens=300,
        max_response_tokens=100,
    )
    model = Model(None, folder.ours, spec=spec, sampling=SamplingSpec(), rollout=uuid.UUID(int=1))  # type: ignore[arg-type]
    messages = [TOLD, ASK]
    ids = model.chat_prompt([Message(each["role"], each["content"]) for each in messages])
    assert ids == folder.prompt(messages)
    algorithm = AlgorithmSpec(kind="grpo", repeat_times=2, advantage="grpo", policy_loss="ppo")
    # Rows of an expert beside the rollouts are rendered in a template of their own, which nobody asks the model in.
    tasks = TasksetSpec(name="t", path="tasks.jsonl")
    expert = TasksetSpec(name="e", path="rows.jsonl", format=Format(chat_template="expert"))
    stage = StageSpec(
        name="s",
        kind="both",
        total_steps=1,
        batch_size=1,
        train_batch_size=1,
        algorithm=algorithm,
        model=spec,
        taskset=tasks,
        dataset=expert,
    )
    place_template(tmp_path, stage)
    exported: Any = AutoTokenizer.from_pretrained(folder.path)
    assert exported.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids


CUTTING = template("<|{{ m.role }}|>{{ m.content.split('</think>')[-1] }}{{ eos_token }}", "<|assistant|><think>\n")


@pytest.mark.parametrize("several", [False, True], ids=["last", "each"])
@pytest.mark.parametrize("marks", [False, True], ids=["", "marks"])
def test_an_answer_that_the_template_cuts_is_refused(tmp_path: Path, several: bool, marks: bool) -> None:
    folder = Folder(tmp_path, 0, "chatml")
    said = "{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
    marked = (
        f"{{% if m.role == 'assistant' %}}{{% generation %}}{said}{{% endgeneration %}}{{% else %}}{said}{{% endif %}}"
    )
    cutting = CUTTING.replace(said, marked) if marks else CUTTING
    folder.ours = open_tokenizer(str(tmp_path), chat_template=cutting)
    thought, other = ({"role": "assistant", "content": f"<think>{why}</think>four"} for why in ("right", "wrong"))
    with pytest.raises(DataError, match="chat template leaves text out"):
        folder.rows({"m": [ASK, thought]}, "sft", messages_key="m", enable_concatenated_multi_turn=several)
    with pytest.raises(DataError, match="chat template leaves text out"):
        folder.rows({"m": [ASK], "chosen": thought, "rejected": other}, "dpo", messages_key="m")
    with pytest.raises(DataError, match="chat template leaves text out"):
        folder.rows({"prompt": "2", "completion": thought["content"], "label": 1}, "kto", prompt_type="plaintext")
    plain = {"role": "assistant", "content": " four\n"}  # blanks are trimmed by many
    (row,) = folder.rows({"m": [ASK, plain]}, "sft", messages_key="m", enable_concatenated_multi_turn=several)
    assert row.tokens[-1] == 2


def test_tools_are_rendered_as_transformers_renders_them(tmp_path: Path) -> None:
    folder = Folder(tmp_path, 1, "tools")
    (row,) = folder.rows({"prompt": "2+2? say", "response": ANSWER, "tools": TOOLS}, "sft", prompt_type="plaintext")
    assert halves(row) == (folder.prompt([ASK], tools=TOOLS), folder.answer([ASK], ANSWER, tools=TOOLS))


@pytest.mark.parametrize("form", FORMS)
def test_a_bare_text_has_one_beginning_and_ends_once(tmp_path: Path, form: str) -> None:
    merged(form).save_pretrained(tmp_path)
    tokenizer = open_tokenizer(str(tmp_path))
    words = tokenizer.encode("two")
    beginning = [1] if "<bos>" in form else []
    assert tokenizer.encode("two", special=True) == [*beginning, *words]
    assert tokenizer.encode("<bos>two", special=True) == [1, *words]
    for answer in ("four", "four<eos>", "four<eos><eos>"):
        spec = TasksetSpec(name="t", path="rows.jsonl", format=Format(prompt_type="raw"))
        record = {"prompt": "two", "response": answer}
        (row,) = make_train_rows(record, spec=spec, row=0, tokenizer=tokenizer, max_model_len=40)
        assert halves(row) == ([*beginning, *words], [*tokenizer.encode("four"), 2])
    (row,) = make_train_rows(
        {"prompt": "<bos>two<eos>"},
        spec=TasksetSpec(name="t", path="rows.jsonl", format=Format(prompt_type="raw"), schema="cpt"),
        row=0,
        tokenizer=tokenizer,
        max_model_len=40,
    )
    assert row.tokens.tolist() == [1, *words, 2]


@pytest.mark.parametrize("several", [False, True], ids=["last", "each"])
@pytest.mark.parametrize("name", ["chatml", "ends of the sequence", "marks", "marks without the end"])
def test_an_end_that_an_answer_brings_along_is_learned_once(tmp_path: Path, name: str, several: bool) -> None:
    folder = Folder(tmp_path, 0, name)
    end = "<|im_end|>" if name == "chatml" else "<eos>"
    turns = [ASK, {"role": "assistant", "content": "four"}, ASK, {"role": "assistant", "content": "four"}]
    form = {"messages_key": "m", "enable_concatenated_multi_turn": several}
    (want,) = folder.rows({"m": turns}, "sft", **form)
    doubled = [{**turn, "content": turn["content"] + end} if turn["role"] == "assistant" else turn for turn in turns]
    (row,) = folder.rows({"m": doubled if several else [*turns[:3], doubled[3]]}, "sft", **form)
    assert row.tokens.tolist() == want.tokens.tolist()
    assert row.loss_mask.tolist() == want.loss_mask.tolist()
    assert row.tokens[-1] in folder.ends
    learned = [token for token, mask in zip(row.tokens[row.prompt_tokens :], row.loss_mask, strict=True) if mask]
    assert sum(token in folder.ends for token in learned) == (2 if several else 1)

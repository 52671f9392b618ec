"""What people and programs get wrong in a file as a whole: traps of YAML, loops, sizes, encodings, quotes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from rftd.daemon.cli.verbs.config import config_group
from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, check_config, load_file, read_stream
from rftd.ops import limits

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


@pytest.mark.parametrize(
    ("line", "environ", "said"),
    [
        ("group: ${oc.env:NO_SUCH}", {}, ("NO_SUCH is not set", "export NO_SUCH=...")),
        ("seed: ${oc.env:SEED}", {"SEED": "many"}, ("expected a whole number, got the text 'many'",)),
        ("group: ${group}", {}, ("refers to itself: group -> group", "write one of them out")),
        ("labels: {a: '${labels.b}', b: 'x${labels.a}'}", {}, ("labels.a -> labels.b -> labels.a",)),
        ("labels: ${labels}", {}, ("labels -> labels",)),
        ("labels: {a: '${labels}'}", {}, ("refers to itself",)),
        ("group: yes", {}, ("got yes, which YAML reads as true", 'fix: quote it: "yes"')),
        ("group: Off", {}, ("got Off, which YAML reads as false", 'fix: quote it: "Off"')),
        ("group: 1.10", {}, ('fix: quote it: "1.10"',)),
        ("group: 0xff", {}, ('fix: quote it: "0xff"',)),
        ("labels: {a: 1_000}", {}, ('fix: quote it: "1_000"',)),
        ("labels: {a: ~}", {}, ("got nothing (null)", "write a text, or leave the field out")),
        ("on: 3", {}, ("on: unknown field",)),
        ("name: again", {}, ("the key appears twice, first on line 3",)),
        ("explorer: {env_var: {A: 1}}", {}, ("did you mean 'env_vars'?",)),
        ("trainer: {engine_args: {gradient_checkpoint: true}}", {}, ("did you mean 'gradient_checkpointing'?",)),
        ("trainer: {trainer_config: {critic: {ppo_epoch: 2}}}", {}, ("did you mean 'critic.ppo_epochs'?",)),
    ],
)
def test_a_trap_is_named_at_its_line(
    errors: Errors, small: str, line: str, environ: Mapping[str, str], said: tuple[str, ...]
) -> None:
    texts = errors(small + line + "\n", environ=environ)
    for words in said:
        assert any(words in text and "exp.yaml:18:" in text for text in texts), texts


def test_a_flag_is_quoted_as_it_was_written(errors: Errors, small: str) -> None:
    (text,) = errors(small, ["group=no"])
    assert 'got no, which YAML reads as false\n  --> -s group\n  fix: quote it: "no"' in text


@pytest.mark.parametrize(("text", "value"), [("1e-6", 1e-6), ("1E-06", 1e-6), ("1.0e-6", 1e-6), (".5", 0.5)])
def test_a_number_is_one_in_any_spelling(load: Load, small: str, text: str, value: float) -> None:
    (stage,) = load(small, [f"algorithm.optimizer.lr={text}"]).spec.stages
    assert stage.algorithm.optimizer.lr == value


def test_on_and_off_are_true_and_false_where_these_are_asked_for(load: Load, small: str) -> None:
    (stage,) = load(small + "trainer: {shuffle: on}\nexplorer: {eval_on_startup: Off}\n").spec.stages
    assert stage.trainer.updates.shuffle is True
    assert stage.eval_on_startup is False


def test_aliases_of_aliases_are_counted_as_what_they_are(errors: Errors, small: str) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 8)}]" for level in range(1, 9)]
    (text,) = errors(small + "labels: {" + ", ".join(lines) + "}\n")
    assert f"more than {limits.CONFIG_NODES:,} values, aliases expanded" in text


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("name: n", "name: 'n", 3, "the quote that opens here is not closed"),
        ("name: n", 'name: "n', 3, "the quote that opens here is not closed"),
        # It runs to the next quote of the file, however far that is.
        ("name: n\ncheckpoint_root_dir: /c", 'name: "n\ncheckpoint_root_dir: "/c"', 3, "ends on line 4 only"),
        ("  algorithm_type: grpo", "  algorithm_type: {grpo", 6, "the bracket that opens here is not closed"),
        ("  batch_size: 2", "  batch_size: [2, 3", 12, "the bracket that opens here is not closed"),
    ],
)
def test_what_is_never_closed_is_shown_where_it_opens(
    errors: Errors, small: str, old: str, new: str, line: int, said: str
) -> None:
    (text,) = errors(small.replace(old, new))
    assert said in text
    assert f"exp.yaml:{line}:" in text
    assert "fix: close it" in text


@pytest.mark.parametrize("before", [b"", b"a"], ids=["even", "odd"])
def test_a_large_file_is_too_large_wherever_its_characters_end(tmp_path: Path, load: Load, before: bytes) -> None:
    file = tmp_path / "large.yaml"
    file.write_bytes(before + "é".encode() * limits.CONFIG_SIZE_BYTES)
    said = f"larger than {limits.CONFIG_SIZE_BYTES:,} bytes"
    with pytest.raises(ConfigErrors, match=said):
        load_file(file)
    with pytest.raises(ConfigErrors, match=said):
        read_stream(io.BytesIO(file.read_bytes()), "<stdin>")
    with pytest.raises(ConfigErrors, match=f"trainer_config_path: {said}"):
        load(overrides=[f"trainer.trainer_config_path={file}"])


@pytest.mark.parametrize("data", [b"name: \xe9\n", "name: é\n".encode("utf-16")], ids=["latin-1", "utf-16"])
def test_another_encoding_is_named(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "other.yaml"
    file.write_bytes(data)
    for arguments, given in ((["check", str(file)], b""), (["check", "-"], data)):
        result = CliRunner().invoke(config_group, arguments, input=given)
        assert result.exit_code == 2
        assert "not UTF-8 text: byte" in result.stderr
        assert "save it as UTF-8" in result.stderr


@pytest.mark.parametrize("path", ["~nobody-here/x.yaml", "a\0b", "/", "/no/such.yaml"])
def test_a_trainer_file_that_cannot_be_read_is_an_error_of_its_field(errors: Errors, path: str) -> None:
    texts = errors(overrides=[f"trainer.trainer_config_path={path!r}".replace("'a\\x00b'", '"a\\0b"')])
    assert any("trainer.trainer_config_path" in text for text in texts), texts


def test_an_interpolation_in_submitted_data_stays_text(load: Load) -> None:
    config = load().config
    for text in ("${oc.env:HOME}", "${name}", "x ${"):
        config = {**config, "labels": {"a": text}}
        assert check_config(config).labels == {"a": text}
    with pytest.raises(ConfigErrors) as caught:
        check_config({**config, "trainer": {"save_interval": "${name}"}, "log": {"api_key": "${oc.env:KEY}"}})
    assert {(error.field, error.code) for error in caught.value.errors} >= {
        ("trainer.save_interval", "RFTD-CFG-005"),
        ("log.api_key", "RFTD-CFG-007"),
    }


def test_a_misspelled_buffer_of_an_expert_is_named(errors: Errors, small: str) -> None:
    buffers = "{sft_datset: {path: /x.jsonl}}"
    overrides = [f"buffer.trainer_input.auxiliary_buffers={buffers}", "algorithm.algorithm_type=mix"]
    texts = errors(small, [*overrides, "buffer.train_batch_size=8"])
    assert any("auxiliary_buffers.sft_datset" in text and "did you mean 'sft_dataset'?" in text for text in texts), (
        texts
    )

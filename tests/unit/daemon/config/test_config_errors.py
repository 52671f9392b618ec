"""Every wrong file ends in errors that name file, line, column, field and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, check_config, load_file
from rftd.ops import limits

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]


def test_all_errors_come_at_once_in_the_order_of_the_file(errors: Errors, small: str) -> None:
    text = small.replace("batch_size: 2", "batchsize: 2").replace("repeat_times: 4", "repeat_times: four")
    text = text.replace("total_steps: 5", "total_steps: 5.5\nsynchronizer: {sync_style: fixd}")
    # what stood below `total_steps` is now in the wrong section
    first, second, *_ = found = errors(text.replace("  explorer_input:", "buffer2:"))
    assert "algorithm.repeat_times: expected a whole number, got the text 'four'" in first
    assert "--> exp.yaml:7:17" in first
    assert "RFTD-CFG-004" in second
    assert "buffer.batchsize: unknown field in buffer" in second
    assert "fix: did you mean 'batch_size'?" in second
    assert "12 |   batchsize: 2" in second
    assert "|   ^^^^^^^^^\n" in second
    assert any("fix: did you mean 'fixed'?" in text for text in found)
    assert any("expected a whole number, got the number 5.5" in text for text in found)


def test_a_contradiction_comes_with_what_is_malformed_elsewhere(errors: Errors, small: str) -> None:
    text = small.replace("default_workflow_type: math_workflow", "default_workflow_type: math_workflo")
    workflow, often = errors(text + "trainer: {save_interval: often}\n")
    assert "default_workflow_type: unknown workflow 'math_workflo'" in workflow
    assert "trainer.save_interval: expected a whole number" in often


def test_nothing_is_said_of_what_may_follow_from_what_is_malformed(errors: Errors, small: str) -> None:
    asked = small + "deterministic: true\nsynchronizer: {sync_style: STYLE, sync_offset: 0}\n"
    assert len(errors(asked.replace("STYLE", "fully_async"))) == 1, "it contradicts deterministic"
    [found] = errors(asked.replace("STYLE", "fully_asink"))
    assert "synchronizer.sync_style: expected" in found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("buffr: {}", "did you mean 'buffer'?"),
        ("algoritm: {}", "did you mean 'algorithm'?"),
        ("lr: 1", "did you mean algorithm.optimizer.lr?"),
        ("seed: -1", "seed"),
        ("seed: yes", "expected a whole number, got yes, which YAML reads as true"),
        ("group: 7", 'fix: quote it: "7"'),
        ("mode: bot", "did you mean 'both'?"),
        ("group: ../x", "becomes a folder's name"),
        ("labels: [a]", "expected a mapping, got a list"),
        ("stages: {}", "expected a list, got a mapping"),
        ("explorer: 3", "expected a mapping, got the number 3"),
        ("labels: {a: .nan}", "not a finite number"),
        ("labels: {a: '${'}", "not closed"),
        ("trainer: {grad_clip: 0}", "greater than 0"),
        ("trainer: {save_interval: !!python/object:os.system x}", "is not allowed"),
        ("trainer: {save_interval: 99999999999999999999}", "trainer.save_interval"),
    ],
)
def test_a_wrong_line_is_named(errors: Errors, small: str, line: str, words: str) -> None:
    texts = errors(small + line + "\n")
    assert any(words in text and "exp.yaml:18:" in text for text in texts), texts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("- a\n- b\n", "must be a mapping"),
        ("just words", "must be a mapping"),
        ("a: b: c", "not valid YAML"),
        ("a: [1, 2", "not valid YAML"),
        ("a:\n\tb: 1", "indent with spaces"),
        ("a: 1\n---\nb: 2\n", "second document"),
        ("name: a\nname: b\n", "the key appears twice, first on line 1"),
        ("model: {model_path: a, model_path: b}", "appears twice"),
        ("a: *b", "not valid YAML|names no anchor"),
        ("a: &a [*a]", "not valid YAML|names no anchor"),
        ("[a]: 1", "a key must be a word"),
        ("a: " + "[" * 100 + "]" * 100, f"nested deeper than {limits.CONFIG_DEPTH} levels"),
        ("a: " + "[" * 100_000, f"nested deeper than {limits.CONFIG_DEPTH} levels"),
        ("a: " + "x" * limits.CONFIG_SIZE_BYTES, "larger than"),
        ("a: [" + "1," * (limits.CONFIG_NODES + 1) + "]", f"more than {limits.CONFIG_NODES:,} values"),
        ("a: &a [1]\nb: [" + "*a," * (limits.CONFIG_ALIASES + 1) + "]", f"more than {limits.CONFIG_ALIASES} aliases"),
    ],
)
def test_a_file_that_is_none_is_refused(errors: Errors, text: str, words: str) -> None:
    found = errors(text)
    assert any(word in error for error in found for word in words.split("|")), found


def test_aliases_that_explode_are_refused(errors: Errors) -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 7)]
    (text,) = errors("\n".join(lines))
    assert "values, aliases expanded" in text
    assert "RFTD-CFG-003" in text


def test_aliases_and_merge_keys_within_reason_are_read(load: Load, small: str) -> None:
    text = small.replace("    taskset:\n", "    eval_tasksets: [{<<: *t, split: test}]\n    taskset: &t\n")
    text = text.replace("    eval_tasksets: [{<<: *t, split: test}]\n", "")
    text += "    eval_tasksets: [{<<: *t, split: test}]\n"
    (held_out,) = load(text).spec.stages[0].evals
    assert (held_out.path, held_out.split) == ("/t.jsonl", "test")


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    binary = tmp_path / "model.safetensors"
    binary.write_bytes(b"\x00\xff\xfe\x80 weights")
    utf16 = tmp_path / "utf16.yaml"
    utf16.write_bytes("name: x".encode("utf-16"))
    cases = {binary: "not UTF-8", utf16: "not UTF-8", tmp_path: "directory", tmp_path / "no": "no such file"}
    for path, words in cases.items():
        with pytest.raises(ConfigErrors, match=words) as caught:
            load_file(path)
        assert caught.value.exit_status == 2
        assert str(path) in str(caught.value)


def test_yaml_traps_are_no_traps(load: Load) -> None:
    overrides = ["algorithm.optimizer.lr=1e-6", "labels={a: 010, b: 12:30:00, c: 2024-01-01, d: '1e-5'}"]
    overrides += ["monitor={monitor_type: swanlab, monitor_args: {x: 1e-5, y: 1_000, on: off}}", "deterministic=no"]
    spec = load(overrides=overrides).spec
    assert spec.stages[0].algorithm.optimizer.lr == 1e-6
    assert spec.labels == {"a": "010", "b": "12:30:00", "c": "2024-01-01", "d": "1e-5"}
    assert spec.config["monitor"]["monitor_args"] == {"x": 1e-5, "y": 1000, "on": False}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "a\0b"}, "NUL"),
        ({"name": "\ud800"}, "surrogate"),
        ({"seed": 2**70}, "64 bits"),
        ({"seed": float("inf")}, "finite"),
        ({"checkpoint_root_dir": "here"}, "must be absolute here"),
        ({"checkpoint_root_dir": None}, "expected text"),
        ({"trainer": {"trainer_config_path": "/x"}}, "is not read here"),
        ({"name": b"bytes"}, "no plain value"),
        ({3: 4}, "a key must be text"),
    ],
)
def test_the_daemon_checks_what_it_is_sent(load: Load, change: dict[object, object], words: str) -> None:
    with pytest.raises(ConfigErrors, match=words):
        check_config({**load().config, **change})  # type: ignore[dict-item]


def test_the_daemon_survives_depth(load: Load) -> None:
    deep: dict[str, object] = {}
    for _ in range(50_000):
        deep = {"a": deep}
    with pytest.raises(ConfigErrors, match="nested deeper"):
        check_config({**load().config, "labels": deep})

"""A literal secret is refused under every spelling of its name, in every place of a file, and is shown nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic.daemon.daemon_parts import open_daemon
from synthetic.daemon.experiment_files import config, overlaid

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import check_config, load_text, portable_overrides
from rftd.daemon.config.schema.experiment import Experiment
from rftd.daemon.config.schema.section import Section
from rftd.ops.redaction import MASK, is_secret_field, mask_text, redact

CANARY = "s3cr3t-canary-value"
SPELLINGS = (
    *("openai_key", "OPENAI-KEY", "apiKey", "OPENAI_API_KEY", "hf_token", "x-api-key", "secretKey", "Authorization"),
    *("passphrase", "DSN", "accessToken", "clientSecret", "AWSSecretAccessKey", "db.password", "sslpassword"),
    *("webhook", "KEY_FILE_PASSWORD", "openai_key_2", "token_b64"),
)
TASKSET = "buffer.explorer_input.taskset"
MAPPINGS = (
    *(f"{TASKSET}.workflow_args", f"{TASKSET}.reward_fn_args", f"{TASKSET}.data_selector.kwargs"),
    *("explorer.rollout_model.extra_engine_args", "trainer.engine_args", "trainer.trainer_config", "labels"),
    *("monitor.monitor_args", "algorithm.policy_loss_fn_args", "explorer.env_vars", "log"),
)
URLS = (f"{TASKSET}.path", "explorer.db_url", f"{TASKSET}.workflow_args.endpoint", "labels.link")


def laid(path: str, value: Any) -> dict[str, Any]:
    """The smallest experiment, with a value at a path."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return overlaid(config(), value)


def refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigErrors) as caught:
        check_config(tree)
    assert "RFTD-CFG-007" in {error.code for error in caught.value.errors}
    assert CANARY not in str(caught.value) + repr([(error.what, error.fix) for error in caught.value.errors])


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_secret_by_any_name_is_refused_in_every_mapping(name: str, mapping: str) -> None:
    refused(laid(mapping, {name: CANARY}))
    refused(laid(mapping, {name: [{"inner": CANARY}]}))


@pytest.mark.parametrize("field", URLS)
@pytest.mark.parametrize("name", [*SPELLINGS, "key", "sig", "X-Amz-Signature"])
def test_a_secret_in_a_query_is_refused_wherever_a_url_may_stand(name: str, field: str) -> None:
    refused(laid(field, f"https://host.example/path?a=1&{name}={CANARY}#part"))


@pytest.mark.parametrize("name", SPELLINGS)
def test_on_the_command_line_and_on_the_client_too(name: str) -> None:
    override = f"{TASKSET}.reward_fn_args.{name.replace('.', '_')}={CANARY}"
    with pytest.raises(ConfigErrors) as caught:
        check_config(config(), overrides=[override])
    assert CANARY not in str(caught.value)
    with pytest.raises(ConfigErrors) as caught:
        portable_overrides(config(), [override])
    assert CANARY not in str(caught.value)
    with pytest.raises(ConfigErrors) as caught:
        load_text(json.dumps(laid(f"{TASKSET}.reward_fn_args", {name: CANARY})), "exp.yaml", environ={})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("name", SPELLINGS)
def test_logs_mask_it_in_fields_and_in_text(name: str) -> None:
    assert redact({name: CANARY}) == {name: MASK}
    for text in (f"{name}={CANARY}", f"said: {{'{name}': '{CANARY}'}}", f"https://h/p?{name}={CANARY}"):
        assert CANARY not in mask_text(text)


def test_hint_keeps_a_variables_name_and_masks_lookalikes_whole() -> None:
    for hint in ("api_key: {env: OPENAI_API_KEY}", 'api_key={"env": "KEY_2"}'):
        assert mask_text(f"write {hint} instead") == f"write {hint} instead"
    assert mask_text(f"api_key: {{env: {CANARY}}} b") == f"api_key: {MASK} b"
    assert mask_text(f"api_key: {{key: x, value: {CANARY}}}") == f"api_key: {MASK}"


def test_names_of_columns_are_no_secrets() -> None:
    format = {"prompt_key": "question", "response_key": "answer", "system_prompt_key": "system"}
    assert not any(is_secret_field(name) for name in ("answer1_key", "answer2_key", "chosen_key", "stats_key"))
    assert is_secret_field("api1_key")
    spec = check_config(laid(f"{TASKSET}.format", format))
    assert spec.config["buffer"]["explorer_input"]["taskset"]["format"] == format


def test_no_field_of_the_schema_is_masked_that_may_be_written() -> None:
    secret = {name for section in sections(Section) for name in section.model_fields if is_secret_field(name)}
    assert secret == {"api_key"}, "a new field that ends like a secret: is it one? else say so in ops/redaction.py"
    assert Experiment in sections(Section)


def sections(kind: type[Section]) -> list[type[Section]]:
    return [kind, *(below for child in kind.__subclasses__() for below in sections(child))]


@pytest.mark.anyio
async def test_the_api_never_says_it(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as parts, parts.client() as client:
        for path in ("/v1/experiments", "/v1/experiments/check"):
            for name in SPELLINGS:
                tree = laid(f"{TASKSET}.reward_fn_args", {name: CANARY})
                answer = await client.post(path, json={"config": tree})
                assert answer.status_code == 422, answer.text
                assert CANARY not in answer.text
                assert "reward_fn_args" in answer.text
        answer = await client.post("/v1/experiments", json={"config": config(), "labels": {"openai_key": CANARY}})
        assert answer.status_code == 422
        assert CANARY not in answer.text

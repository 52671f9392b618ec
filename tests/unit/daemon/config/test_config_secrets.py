"""A secret never leaves the client as a value: not in the config, not in the event, not in an error."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec
import pytest

from rftd.daemon.config.issue import ConfigErrors
from rftd.daemon.config.loading import Submission, check_config
from rftd.workers.devices.host import Host

Load = Callable[..., Submission]
Errors = Callable[..., list[str]]

NO_GPU = Host(no_gpu="nvidia-smi not found")
CANARY = "s3cr3t-canary-value"
ENV = {"WANDB_API_KEY": CANARY, "DB": f"postgresql://me:{CANARY}@host/db", "HF_TOKEN": CANARY, "CANARY": CANARY}


def test_a_variable_in_a_secret_field_travels_by_name(load: Load, small: str) -> None:
    text = small + (
        "monitor:\n  monitor_type: swanlab\n  monitor_args:\n"
        "    api_key: ${oc.env:WANDB_API_KEY}\n    hf_token: {env: HF_TOKEN}\n"
        "explorer:\n  db_url: ${oc.env:DB}\n  env_vars: {HF_TOKEN: '${oc.env:HF_TOKEN}'}\n"
        "  rollout_model: {api_key: '${monitor.monitor_args.api_key}'}\n"
    )
    submission = load(text, environ=ENV)
    assert submission.config["monitor"]["monitor_args"] == {
        "api_key": {"env": "WANDB_API_KEY"},
        "hf_token": {"env": "HF_TOKEN"},
    }
    assert submission.config["explorer"]["db_url"] == {"env": "DB"}
    assert submission.config["explorer"]["rollout_model"]["api_key"] == {"env": "WANDB_API_KEY"}
    assert submission.spec.stages[0].rollout.environment == ("HF_TOKEN",)
    assert CANARY.encode() not in msgspec.json.encode(submission.spec)
    assert CANARY not in json.dumps(submission.config) + repr(submission)
    assert check_config(submission.config, host=NO_GPU) == submission.spec


LITERALS = [
    "monitor: {monitor_args: {api_key: %s}}",
    "monitor: {monitor_args: {password: '%s', bad_field: [}}",
    "monitor: {monitor_args: {credentials: {user: me, inner: [%s]}}}",
    "explorer: {env_vars: {ANYTHING: %s}, nonsense: 1}",
    "explorer: {env_vars: %s}",
    "explorer: {db_url: 'postgresql://me:%s@host/db'}",
    "explorer: {rollout_model: {api_key: 'Bearer %s', engine_num: x}}",
    "monitor: {monitor_args: {api_key: '${oc.env:UNSET,%s}'}}",
    "monitor: {monitor_args: {api_key: 'x${oc.env:WANDB_API_KEY}'}}",
    "labels: {a: 'postgresql://me:${oc.env:UNSET,%s}@host/db'}",
    "labels: {a: '${oc.env:HF_TOKEN}'}",
    "labels: {a: '${oc.env:UNSET,${oc.env:HF_TOKEN}}'}",
    "group: ${monitor.monitor_args.api_key}\nmonitor: {monitor_args: {api_key: '${oc.env:WANDB_API_KEY}'}}",
    "monitor:\n  monitor_args:\n    api_key: |\n      %s\n      more\n    nonsense: {a: b: c}",
    "explorer:\n  env_vars:\n    ANYTHING: |\n      %s\n      more\n  nonsense: 1",
    "explorer: {env_vars: {PLAIN: '${oc.env:UNSET,%s}'}}",
    "explorer: {env_vars: {PLAIN: '${oc.env:CANARY}'}}",
    "explorer: {env_vars: {PLAIN: '${oc.env:CANARY,x}/cache'}}",
    "explorer: {env_vars: {PLAIN: '${oc.env:WANDB_API_KEY,x}'}}",
    "explorer: {env_vars: {PLAIN: '${oc.env:UNSET,${oc.env:HF_TOKEN}}'}}",
    "explorer: {env_vars: {MY_KEY: '${oc.env:UNSET,%s}'}}",
    "explorer: {env_vars: {PLAIN: '/x/${monitor.monitor_args.api_key}'}}\n"
    "monitor: {monitor_args: {api_key: '${oc.env:WANDB_API_KEY}'}}",
    "log: {api_key: %s}",
    "api_key: %s",
    "trainer: {trainer_config: {hf_token: %s}}",
]


@pytest.mark.parametrize("line", LITERALS)
def test_a_literal_secret_is_refused_without_showing_it(load: Load, small: str, line: str) -> None:
    text = small + (line % CANARY if "%s" in line else line) + "\n"
    with pytest.raises(ConfigErrors) as caught:
        load(text, environ=ENV)
    assert CANARY not in str(caught.value)
    assert all(CANARY not in str(error.what) + str(error.fix) + str(error.where) for error in caught.value.errors)


def test_the_refusal_says_how_to_name_it(errors: Errors, small: str) -> None:
    (text,) = errors(small + f"monitor: {{monitor_args: {{api_key: {CANARY}}}}}\n")
    assert "RFTD-CFG-007" in text
    assert "monitor.monitor_args.api_key" in text
    assert "{env: API_KEY}" in text
    assert "exp.yaml:18:35" in text
    (text,) = errors(overrides=[f"explorer.env_vars.MY_KEY={CANARY}"])
    assert "MY_KEY: {env: MY_KEY}" in text
    assert CANARY not in text


def test_a_renamed_variable_of_a_worker_is_refused(errors: Errors) -> None:
    (text,) = errors(overrides=["explorer.env_vars={A: {env: B}}"])
    assert "cannot be renamed" in text


def test_placeholders_of_the_guide_are_no_secrets(load: Load) -> None:
    load(
        overrides=[
            "explorer.rollout_model.api_key=EMPTY",
            "monitor.monitor_type=swanlab",
            "monitor.monitor_args={api_key: '', token: null}",
        ]
    )


def test_the_daemon_refuses_a_literal_secret_too(load: Load) -> None:
    config = {**load().config, "monitor": {"monitor_args": {"api_key": CANARY}}}
    with pytest.raises(ConfigErrors, match="must not be written") as caught:
        check_config(config)
    assert CANARY not in str(caught.value)


PLAIN = "explorer.env_vars={TOKENIZERS_PARALLELISM: 'false', WORKERS: 4, CACHE: /data/cache-2024/a1, A: {env: A}}"


def test_variables_that_are_no_secrets_are_values_of_the_specification(load: Load, errors: Errors) -> None:
    submission = load(overrides=[PLAIN])
    rollout = submission.spec.stages[0].rollout
    assert rollout.environment_values == {
        "TOKENIZERS_PARALLELISM": "false",
        "WORKERS": "4",
        "CACHE": "/data/cache-2024/a1",
    }
    assert rollout.environment == ("A",)
    assert check_config(submission.config, host=NO_GPU) == submission.spec
    stages = "stages=[{stage_name: a}, {stage_name: b, explorer: {env_vars: {WORKERS: 5}}}]"
    (text,) = errors(overrides=[PLAIN, stages])
    assert "explorer.env_vars: is {" in text


@pytest.mark.parametrize(
    ("value", "environ", "becomes"),
    [
        ("${oc.env:TMPDIR,/tmp}", {}, "/tmp"),
        ("${oc.env:TMPDIR,/tmp}", {"TMPDIR": "/scratch"}, "/scratch"),
        ("${oc.env:OTHER,/tmp}", {"OTHER": "/other"}, "/other"),
        ("${oc.env:OTHER}/a", {"OTHER": "/other"}, "/other/a"),
        ("${oc.env:UNSET,${oc.env:OTHER}}", {"OTHER": "/other"}, "/other"),
        ("${oc.env:OTHER,null}", {}, None),
        ("${model.model_path}", {}, "/m"),
    ],
)
def test_a_variable_with_a_default_is_a_value_unless_a_name_is_a_secrets(
    load: Load, value: str, environ: dict[str, str], becomes: str | None
) -> None:
    submission = load(overrides=[f"explorer.env_vars={{TMPDIR: '{value}'}}"], environ=environ)
    values = submission.spec.stages[0].rollout.environment_values
    assert values.get("TMPDIR") == becomes
    assert check_config(submission.config, host=NO_GPU) == submission.spec


def test_a_variable_without_a_default_is_read_where_the_workers_run(load: Load) -> None:
    rollout = load(overrides=["explorer.env_vars={TMPDIR: '${oc.env:TMPDIR}'}"], environ={"TMPDIR": "/x"}).spec.stages
    assert rollout[0].rollout.environment == ("TMPDIR",)
    assert rollout[0].rollout.environment_values == {}


@pytest.mark.parametrize(
    "name", ["MY_KEY", "API_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "BASIC_AUTH", "SESSION_COOKIE", "APP_DSN"]
)
def test_a_variable_with_the_name_of_a_secret_is_refused_whatever_it_holds(errors: Errors, name: str) -> None:
    (text,) = errors(overrides=[f"explorer.env_vars={{{name}: abc}}"])
    assert f"{name}: {{env: {name}}}" in text
    assert "abc" not in text


@pytest.mark.parametrize("value", ["sk-1234567890abcdef", "'a b ghp16C7e42F292c6912E7'", "'http://me:pw@host/'"])
def test_a_value_like_a_key_is_refused_whatever_its_name(errors: Errors, value: str) -> None:
    (text,) = errors(overrides=[f"explorer.env_vars={{PLAIN: {value}}}"])
    assert "must not be written into the file" in text
    assert value.strip("'") not in text


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ("{A: true}", "env_vars.A: is neither text nor a number"),
        ("{A: [x]}", "env_vars.A"),
        ("{'1A': x}", "env_vars.1A: is not a valid variable name"),
        ("{RFTD_DATA: x}", "env_vars.RFTD_DATA: begins with RFTD_"),
        ("{LD_PRELOAD: /tmp/x.so}", "env_vars.LD_PRELOAD: selects the code that programs run"),
        ("{PATH: /tmp}", "env_vars.PATH: selects the code that programs run"),
        ("{PYTHONPATH: /tmp}", "env_vars.PYTHONPATH: selects the code that programs run"),
    ],
)
def test_what_is_no_variable_is_refused(errors: Errors, variables: str, says: str) -> None:
    (text,) = errors(overrides=[f"explorer.env_vars={variables}"])
    assert says in text

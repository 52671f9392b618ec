"""The table of vLLM's models, by which a submission is refused, is that of the vLLM that is installed."""

from __future__ import annotations

from synthetic.models import vllm_architectures


def test_the_table_is_what_the_installed_vllm_runs() -> None:
    said = vllm_architectures.FILE.read_text()
    assert said == vllm_architectures.written(), f"write it anew: python -P {vllm_architectures.__file__}"

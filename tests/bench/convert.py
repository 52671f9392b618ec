"""What `rftd convert` costs: time against a plain copy of the same bytes, and memory against the largest file.

    python -P tests/bench/convert.py [--layers 16] [--ranks 4] [--rounds 5] [--folder DIR]

The checkpoint is FSDP's, of a Qwen2 with random numbers in float32: a gigabyte with 16 layers. Copy and conversion take
turns, and medians are told; both end when their bytes are on the disk, and both read files that are in the page cache.
The time of a conversion is that of the whole command, and its memory the peak of its process as the system counts it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from figures import median_of, median_ratio, read_options, tell  # noqa: E402


def make(actor: Path, layers: int, ranks: int) -> None:
    """Writes the checkpoint."""
    import torch
    from synthetic.models.foreign_checkpoints import write_fsdp
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=4,
        tie_word_embeddings=False,
    )
    write_fsdp(actor, AutoModelForCausalLM.from_config(config, dtype=torch.float32), ranks=ranks)


def copy(files: list[Path], folder: Path) -> float:
    """The seconds of a copy that is on the disk."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    began_s = time.perf_counter()
    for path in files:
        shutil.copyfile(path, folder / path.name)
        descriptor = os.open(folder / path.name, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - began_s


def convert(run: Path) -> tuple[float, int]:
    """The seconds and the peak memory, in bytes, of the command."""
    (run / "global_step_1" / "actor" / "huggingface" / "model.safetensors").unlink(missing_ok=True)
    began_s = time.perf_counter()
    command = [sys.executable, "-P", "-m", "rftd.daemon", "convert", "--checkpoint-dir", str(run), "-q"]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, "the checkpoint was not converted"
    return time.perf_counter() - began_s, usage.ru_maxrss * 1024


def main(layers: int, ranks: int, rounds: int, folder: Path) -> None:
    """Prints the figures."""
    run = folder / "run"
    actor = run / "global_step_1" / "actor"
    here = [sys.executable, "-P", __file__, "--make", str(actor), "--layers", str(layers), "--ranks", str(ranks)]
    subprocess.run(here, check=True)  # apart, for a child's peak begins with the memory of its parent
    files = sorted(actor.glob("*.pt"))
    largest_bytes = max(path.stat().st_size for path in files)
    copied_s = []
    converted_s = []
    peaks = []
    for _ in range(rounds):
        copied_s.append(copy(files, folder / "copy"))
        took_s, peak_bytes = convert(run)
        converted_s.append(took_s)
        peaks.append(peak_bytes)
    written_bytes = (actor / "huggingface" / "model.safetensors").stat().st_size
    tell(
        {
            "written_gb": round(written_bytes / 1e9, 3),
            "ranks": ranks,
            "copy_s": median_of(copied_s, 2),
            "convert_s": median_of(converted_s, 2),
            "speed_of_copy": median_ratio(copied_s, converted_s),
            "largest_file_mb": round(largest_bytes / 1e6),
            "peak_mb": round(max(peaks) / 1e6),
            "peak_of_largest": round(max(peaks) / largest_bytes, 2),
        }
    )


if __name__ == "__main__":
    given = read_options(__doc__, layers=16, ranks=4, rounds=5, folder=Path, make=(Path, argparse.SUPPRESS))
    if given.make is not None:
        make(given.make, given.layers, given.ranks)
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as made:
            main(given.layers, given.ranks, given.rounds, Path(made))

"""TRL's GRPO loss, backward and optimizer step on given token batches; JSON: seconds of each.

The tokens come from `train_step_trl.py` as a safetensors file: one padded batch, as TRL's own preparation makes it.
What is timed is what GRPOTrainer does with a prepared batch: `_compute_loss`, backward, clipping, fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from typing import Any

import torch
import transformers
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--micro", type=int, required=True, help="sequences of a micro-batch")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    logging.getLogger("trl").setLevel(logging.ERROR)
    trainer: Any = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=options.folder,
            per_device_train_batch_size=options.micro,
            num_generations=8,
            generation_batch_size=options.micro,
            beta=0.0,
            loss_type="dapo",
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
        ),
        train_dataset=Dataset.from_list([{"prompt": "1"}]),
    )
    model = trainer.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    whole = load_file(options.batch)
    size = len(whole["advantages"])
    items = whole["completion_mask"].sum()
    trainer.current_gradient_accumulation_steps = size // options.micro
    took_s, loss_value = [], 0.0
    for _ in range(options.steps):
        began_s = time.perf_counter()
        for start in range(0, size, options.micro):
            inputs = {name: value[start : start + options.micro] for name, value in whole.items()}
            loss = trainer._compute_loss(model, {**inputs, "num_items_in_batch": items})
            loss.backward()
            loss_value = float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        took_s.append(time.perf_counter() - began_s)
    print(json.dumps({"took_s": took_s, "loss_of_the_last_micro_batch": loss_value}))


if __name__ == "__main__":
    main()

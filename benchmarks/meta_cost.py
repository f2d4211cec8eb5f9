"""What an episode of meta-learning costs: time and memory against the number of inner steps, first and second order.

    python -m benchmarks.meta_cost                       # an encoder of all-MiniLM-L6-v2's size, batch 16 x 32
    python -m benchmarks.meta_cost --quick               # does it run? tiny, no meaning in the numbers

Beside the library's episodes stand plain gradient steps (as many as an episode evaluates, k + 1), and the textbook way
to the second order, written here: functional parameters and one graph of all inner steps (`create_graph=True`). All
run in turn, with dropout. Memory is live tensor bytes at their highest point, over parameters and inputs; a "copy" is
the size of all parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import BertConfig

from benchmarks.measuring import CLOCKS, compare, machine, print_table, time_in_turn, write_json
from benchmarks.memory import PeakMemory
from modeling_hire import MultiTaskConfig, MultiTaskModel
from modeling_hire.training.inner_loop import InnerLoop
from modeling_hire.training.meta_trainer import losses_of


MIB = 2**20
RATE = 1e-3
SIZES = {
    "full": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "quick": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 200,
    },
}
STEPS = {"full": (1, 2, 5, 8), "quick": (1, 2)}


def build(size: str) -> MultiTaskModel:
    """A masked language model in training mode and eager attention, which has a second derivative."""
    torch.manual_seed(0)
    model = MultiTaskModel(MultiTaskConfig(encoder_config=BertConfig(**SIZES[size])))
    model.set_attn_implementation("eager")
    return model.train()


def batch(seed: int, vocab_size: int, rows: int, tokens: int) -> dict[str, Any]:
    """Random words, 15 % of which are to be found."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab_size, (rows, tokens), generator=generator)
    hidden = torch.rand(ids.shape, generator=generator) < 0.15
    labels = {"mlm": ids.masked_fill(~hidden, -100)}
    return {"text": {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}}


def plain(model: MultiTaskModel, batches: list[Any]) -> None:
    """One gradient step a batch, each forgotten after it."""
    for each in batches:
        model.zero_grad(set_to_none=True)
        losses_of(model, each)[0].backward()
    model.zero_grad(set_to_none=True)


def episode(model: MultiTaskModel, loop: InnerLoop, batches: list[Any], order: int) -> None:
    """An episode of the library's, as `MetaPretrainer` runs it."""

    def loss_of(each: Any) -> Any:
        return losses_of(model, each)

    with loop.episode(loss_of, batches[:-1], keep=order == 2) as trace:
        loss_of(batches[-1])[0].backward()
        if order == 2:
            outer = [parameter.grad for parameter in loop.adapted]
            for parameter in loop.adapted:
                parameter.grad = None
            gradients, _ = loop.through(trace, loss_of, outer, [])
            for parameter, gradient in zip(loop.adapted, gradients, strict=True):
                parameter.grad = gradient
    model.zero_grad(set_to_none=True)


def kept_graph(model: MultiTaskModel, batches: list[Any]) -> None:
    """The textbook way: every inner step stays in one graph."""
    theta = dict(model.named_parameters())
    phi = theta
    for each in batches[:-1]:
        loss = torch.func.functional_call(model, phi, kwargs=each["text"])["loss"]
        gradients = torch.autograd.grad(loss, list(phi.values()), create_graph=True, allow_unused=True)
        phi = {
            name: value if gradient is None else value - RATE * gradient
            for (name, value), gradient in zip(phi.items(), gradients, strict=True)
        }
    loss = torch.func.functional_call(model, phi, kwargs=batches[-1]["text"])["loss"]
    torch.autograd.grad(loss, list(theta.values()), allow_unused=True)


def contenders(model: MultiTaskModel, steps: Sequence[int], rows: int, tokens: int) -> dict[str, Callable[[], None]]:
    """By name what to measure; `(k)` is the number of inner steps."""
    vocab_size, loop = model.config.vocab_size, InnerLoop(model, RATE)
    runs: dict[str, Callable[[], None]] = {"plain step": lambda: plain(model, [batch(0, vocab_size, rows, tokens)])}
    for k in steps:
        batches = [batch(seed, vocab_size, rows, tokens) for seed in range(k + 1)]
        runs[f"k + 1 plain steps ({k})"] = lambda batches=batches: plain(model, batches)
        runs[f"first order ({k})"] = lambda batches=batches: episode(model, loop, batches, 1)
        runs[f"second order ({k})"] = lambda batches=batches: episode(model, loop, batches, 2)
        runs[f"kept graph ({k})"] = lambda batches=batches: kept_graph(model, batches)
    return runs


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--output", default="benchmarks/results/meta_cost.json", help="JSON file; empty writes none.")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    size = "quick" if options.quick else "full"
    model, steps = build(size), STEPS[size]
    runs = contenders(model, steps, options.rows, options.tokens)
    copy = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())

    peaks = {}
    for name, run in runs.items():
        run()  # what is made once is not counted
        with PeakMemory() as memory:
            run()
        peaks[name] = memory.peak_bytes
    seconds = time_in_turn(runs, options.rounds, clock=options.clock)

    rows = []
    for k in steps:
        reference = f"k + 1 plain steps ({k})"
        for kind in ("first order", "second order", "kept graph"):
            name = f"{kind} ({k})"
            compared = compare(seconds, name, reference)
            kept = k if kind == "second order" else 0
            rows.append(
                {
                    "episode": kind,
                    "k": k,
                    "ratio": compared["ratio"],
                    "ratio_median": compared["ratio_median"],
                    "over_kept_graph": compare(seconds, name, f"kept graph ({k})")["ratio"],
                    "peak_mib": peaks[name] / MIB,
                    "copies_over_plain_step": (peaks[name] - peaks["plain step"]) / copy,
                    "peak_without_copies_mib": (peaks[name] - kept * copy) / MIB,
                    "peak_over_kept_graph": peaks[name] / peaks[f"kept graph ({k})"],
                }
            )
    print_table(
        f"Episodes, batch {options.rows} x {options.tokens}; a copy of the parameters is {copy / MIB:.0f} MiB, "
        f"a plain step's peak {peaks['plain step'] / MIB:.0f} MiB",
        [
            "episode",
            "k",
            "time over k+1 steps",
            "median",
            "over kept graph",
            "peak MiB",
            "copies over plain",
            "without copies",
            "peak over kept graph",
        ],
        [list(row.values()) for row in rows],
    )
    result = {"machine": machine(), "copy_mib": copy / MIB, "plain_step_mib": peaks["plain step"] / MIB, "rows": rows}
    if options.output and not options.quick:
        write_json(options.output, result)
    return result


if __name__ == "__main__":
    main()

"""The pooling head alone against the loop over queries: a part of `pooling_speed.py`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from transformers import BertConfig

from benchmarks.hire_speed import check
from benchmarks.loop_pooling import LoopPooler
from benchmarks.measuring import compare, time_in_turn
from benchmarks.memory import PeakMemory
from modeling_hire import LayerAttnPoolConfig
from modeling_hire.modeling_layer_pooling import LayerPooler, LayerSummary


def head_contenders(sizes: dict[str, int]) -> tuple[dict[str, Callable[..., torch.Tensor]], LayerPooler]:
    """Name to a call that pools first tokens and means, one tensor a layer; both share the pooler's parameters."""
    torch.manual_seed(0)
    encoder_config = BertConfig(hidden_size=sizes["hidden_size"], num_hidden_layers=sizes["layers"] - 1)
    pooler = LayerPooler(LayerAttnPoolConfig(encoder_config=encoder_config))
    loop = LoopPooler(pooler)

    def ours(first_tokens: list[torch.Tensor], token_means: list[torch.Tensor]) -> torch.Tensor:
        summary = LayerSummary(None, "first")
        summary.first_tokens, summary.token_means = first_tokens, token_means
        return pooler(summary)[0]

    def looped(first_tokens: list[torch.Tensor], token_means: list[torch.Tensor]) -> torch.Tensor:
        loop.train(pooler.training)
        return loop(first_tokens, token_means)

    return {"ours": ours, "loop": looped}, pooler


def measure_head(
    sizes: dict[str, int], args: argparse.Namespace, checks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each mode."""
    contenders, pooler = head_contenders(sizes)
    vectors = torch.randn(2, sizes["layers"], sizes["batch"], sizes["hidden_size"])
    first, mean = ([layer.clone().requires_grad_() for layer in part] for part in vectors)

    def forward(pool: Callable[..., torch.Tensor]) -> None:
        with torch.no_grad():
            pool(first, mean)

    modes = {
        "forward, evaluation": (False, forward),
        "forward, training": (True, lambda pool: pool(first, mean)),
        "forward and backward, training": (True, lambda pool: pool(first, mean).sum().backward()),
    }
    pooler.eval()
    results = []
    for pool in contenders.values():
        embeddings = pool(first, mean)
        wanted = [*first, *mean, *pooler.parameters()]
        results.append([embeddings, *torch.autograd.grad(embeddings.pow(2).sum(), wanted)])
    checks.append(check("head: embeddings of ours and loop", results[0][:1], results[1][:1], 1e-6))
    checks.append(check("head: gradients of ours and loop", results[0][1:], results[1][1:], 1e-4))

    def clear(_: str) -> None:
        for tensor in (*first, *mean, *pooler.parameters()):
            tensor.grad = None

    rows = []
    for mode, (training, run) in modes.items():
        pooler.train(training)
        calls = {name: lambda r=run, p=pool: r(p) for name, pool in contenders.items()}
        seconds = time_in_turn(calls, args.rounds, clear, args.clock)
        peaks = {}
        for name, call in calls.items():
            clear(name)
            with PeakMemory() as memory:
                call()
            peaks[f"{name}_peak_bytes"] = memory.peak_bytes
        against = compare(seconds, "loop", "ours")
        rows.append(
            {"mode": mode, "ours_seconds": min(seconds["ours"]), "loop_seconds": min(seconds["loop"])}
            | {
                "speed_up": against["ratio"],
                "speed_up_median": against["ratio_median"],
                "products": products(sizes["layers"]),
            }
            | peaks
        )
    return rows


def products(layers: int) -> float:
    """How many times more multiplications the loop has: what it costs more where all else is free."""
    last = 2  # the dense layer reads two vectors
    return (layers * (1 + 2 * layers) + last) / (3 * layers + last)

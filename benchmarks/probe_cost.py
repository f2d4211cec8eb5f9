"""Time and memory of the reconstruction probe beside calling the output layer naively on stacked hidden states.

    python -m benchmarks.probe_cost                 # BERT of six layers, 30,522 words, 32 texts of 128 tokens
    python -m benchmarks.probe_cost --quick         # does it run? no meaning in the numbers

Three contenders make the same numbers, accuracy, loss, rank and cosine of every layer, without gradients:

- `probe`: `ReconstructionProbe`, 256 tokens at a time;
- `stacked`: all hidden states stacked, one call of the head on them, then the scores layer after layer;
- `by layer`: one call of the head a layer.

Memory is live tensor bytes at their highest point, over parameters and inputs; `resident` is the peak of a fresh
process that does nothing else, interpreter and weights included.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast
from transformers.utils import logging

from benchmarks.measuring import CLOCKS, compare, machine, print_table, random_batch, time_in_turn, write_json
from benchmarks.memory import PeakMemory, peak_resident_bytes
from modeling_hire.analysis.reconstruction import ReconstructionProbe


MIB = 2**20
SIZES = {
    "small": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "quick": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}


def build(size: str, vocab_size: int) -> BertForMaskedLM:
    """A model with random weights, and with the output layer's weights those of the embeddings."""
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(vocab_size=vocab_size, **SIZES[size])).eval()


def tokenizer() -> PreTrainedTokenizerFast:
    """Knows how to pad: the texts come as ids."""
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")


def contenders(options: argparse.Namespace) -> dict[str, Callable[[], list[tuple[float, ...]]]]:
    """Name to a call that returns accuracy, loss, mean rank and cosine of every layer."""
    model = build(options.size, options.vocab_size)
    batch = random_batch([options.length] * options.batch_size, options.vocab_size)
    rows = [{"input_ids": row.tolist()} for row in batch["input_ids"]]
    probe = ReconstructionProbe(
        model, tokenizer(), batch_size=options.batch_size, max_length=options.length, chunk_size=options.chunk_size
    )

    def by_probe() -> list[tuple[float, ...]]:
        found = [entry.everything for entry in probe.layers(rows).layers]
        return [(scores.accuracy, scores.loss, scores.mean_rank, scores.cosine) for scores in found]

    def score(logits: torch.Tensor, states: torch.Tensor, last: torch.Tensor) -> tuple[float, ...]:
        ids = batch["input_ids"]
        own = logits.gather(-1, ids[..., None])
        return (
            (logits.argmax(-1) == ids).float().mean().item(),
            cross_entropy(logits.flatten(0, 1), ids.flatten()).item(),
            (logits >= own).sum(-1).float().mean().item(),
            cosine_similarity(states, last, dim=-1).mean().item(),
        )

    @torch.no_grad()
    def stacked() -> list[tuple[float, ...]]:
        states = torch.stack(model.bert(**batch, output_hidden_states=True).hidden_states)
        logits = model.cls(states)
        return [score(*pair, states[-1]) for pair in zip(logits, states, strict=True)]

    @torch.no_grad()
    def by_layer() -> list[tuple[float, ...]]:
        states = model.bert(**batch, output_hidden_states=True).hidden_states
        return [score(model.cls(state), state, states[-1]) for state in states]

    return {"probe": by_probe, "stacked": stacked, "by layer": by_layer}


def run_alone(name: str, options: argparse.Namespace) -> None:
    """One call of one contender, for a fresh process."""
    torch.set_num_threads(options.threads)
    contenders(options)[name]()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Agreement, time and memory of all contenders."""
    runs = contenders(options)
    results = {name: run() for name, run in runs.items()}
    for name, rows in results.items():
        # Accuracies and ranks may differ by a token whose logit is as good as equal to another's.
        torch.testing.assert_close(torch.tensor(rows), torch.tensor(results["probe"]), rtol=1e-3, atol=1e-3, msg=name)
    seconds = time_in_turn(runs, options.rounds, clock=options.clock)
    entries = {}
    for name, run in runs.items():
        with PeakMemory() as memory:
            run()
        entries[name] = {**compare(seconds, name, "stacked"), "peak_bytes": memory.peak_bytes}
        if options.resident:
            entries[name]["resident_bytes"] = peak_resident_bytes(run_alone, name, options)
    for entry in entries.values():
        entry["memory_ratio"] = entry["peak_bytes"] / entries["stacked"]["peak_bytes"]
        tokens = options.batch_size * options.length
        entry["tokens_per_second"] = tokens / entry["seconds"]
    return entries


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--chunk_size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu")
    parser.add_argument("--resident", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", default="benchmarks/results/probe_cost.json")
    options = parser.parse_args()
    if options.quick:
        options.size, options.vocab_size, options.batch_size, options.rounds = "quick", 500, 2, 1
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    entries = measure(options)
    columns = ["seconds", "ratio", "ratio_median", "tokens_per_second", "MiB", "memory_ratio", "resident MiB"]
    rows = []
    for name, entry in entries.items():
        resident = entry.get("resident_bytes")
        memory = [entry["peak_bytes"] / MIB, entry["memory_ratio"], resident and resident / MIB]
        rows.append([name, *(entry[column] for column in columns[:4]), *memory])
    print_table(
        f"Probe against naive calls ({options.size}, {options.vocab_size} words, "
        f"{options.batch_size} x {options.length} tokens, {options.clock} time)",
        ["contender", *columns],
        rows,
    )
    settings = {name: value for name, value in vars(options).items() if name not in ("json", "quick")}
    write_json(options.json, {"settings": settings, "contenders": entries, "machine": machine()})


if __name__ == "__main__":
    main()

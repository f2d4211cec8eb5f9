"""Speed and memory of ELMo's clipped LSTMs and of its token encoder.

    python -m benchmarks.elmo_speed                              # everything, a few minutes
    python -m benchmarks.elmo_speed --parts recurrence --sizes small
    python -m benchmarks.elmo_speed --quick                      # does it run? no meaning in the numbers

Three parts, each with a table; all of it goes to the JSON file. Within a measure all run in turn.

- `recurrence`: one layer of both directions over a ragged batch of real lengths. `ours` is the clipped layer; `loop`
  the same arithmetic written as one does it first, a sequence of plain PyTorch operations for each direction, all
  rows at every step with the finished ones masked; `library` is PyTorch's LSTM without clipping, which is what the
  layer uses when it has nothing to clip. `forward` (no gradients), `train` (forward and backward) and `second`
  (forward, gradient, and the gradient of its square).
- `characters`: the token encoder on real sentences; `ours` encodes each distinct token once and only as many
  characters as there are, `all` every token and all 50.
- `step`: a training step of the whole language model, clipped and not, and with the sampled softmax.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.measuring import CLOCKS, compare, machine, print_table, stand_in_lengths, time_in_turn, write_json
from benchmarks.memory import PeakMemory
from modeling_hire.configuration_elmo import ElmoConfig
from modeling_hire.modeling_elmo import ElmoForPreTraining
from modeling_hire.modeling_elmo_characters import CharacterEncoder
from modeling_hire.modeling_elmo_layers import ElmoLayer
from modeling_hire.modeling_elmo_lstm import Steps, init_lstm
from modeling_hire.modeling_gru import Packing
from modeling_hire.tokenization_elmo import ElmoTokenizer


PARTS = ("recurrence", "characters", "step")
# cell, projection, rows of a batch, vocabulary.
SIZES = {"small": (256, 64, 32, 5_000), "medium": (1024, 128, 32, 20_000), "original": (4096, 512, 16, 20_000)}
TINY = {"tiny": (12, 6, 3, 50)}
FILTERS = [[1, 16], [2, 16], [3, 32], [4, 64], [5, 64]]
MIB = 2**20


def loop(layer: ElmoLayer, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The layer step by step, `(directions, batch, tokens, size)` to the same; the clips are those of the layer."""
    cell_clip, proj_clip = layer.clips
    results = []
    for inputs, lstm in zip(padded, (layer.forward_lstm, layer.backward_lstm), strict=True):
        hidden, cell = inputs.new_zeros(len(inputs), lstm.proj_size), inputs.new_zeros(len(inputs), lstm.hidden_size)
        outputs = []
        for step in range(inputs.shape[1]):
            running = (lengths > step)[:, None]
            gates = nn.functional.linear(inputs[:, step], lstm.weight_ih_l0, lstm.bias_ih_l0)
            gates = gates + nn.functional.linear(hidden, lstm.weight_hh_l0, lstm.bias_hh_l0)
            i, f, g, o = gates.chunk(4, dim=1)
            new = torch.clamp(f.sigmoid() * cell + i.sigmoid() * g.tanh(), -cell_clip, cell_clip)
            shown = nn.functional.linear(o.sigmoid() * new.tanh(), lstm.weight_hr_l0).clamp(-proj_clip, proj_clip)
            cell, hidden = torch.where(running, new, cell), torch.where(running, shown, hidden)
            outputs.append(shown * running)
        results.append(torch.stack(outputs, dim=1))
    return torch.stack(results)


def layer_of(cell: int, size: int, clip: float | None) -> ElmoLayer:
    config = ElmoConfig(cell_size=cell, projection_size=size, cell_clip=clip, proj_clip=clip)
    torch.manual_seed(0)
    layer = ElmoLayer(config)
    for lstm in (layer.forward_lstm, layer.backward_lstm):
        init_lstm(lstm)
    return layer


def recurrence_runs(cell: int, size: int, lengths: list[int]) -> tuple[dict[str, Callable], dict[str, list]]:
    """What returns the outputs, and what they are differentiated by, for each contender; all on the same texts."""
    lengths_of = torch.tensor(lengths)
    packing = Packing.from_mask((torch.arange(max(lengths))[None] < lengths_of[:, None]).long())
    steps = Steps.of(packing)
    padded = torch.randn(2, len(lengths), max(lengths), size, generator=torch.Generator().manual_seed(0))
    packed = torch.stack([packing.pack(side) for side in padded]).requires_grad_()
    padded.requires_grad_()
    state = torch.zeros(2, len(lengths), size), torch.zeros(2, len(lengths), cell)
    ours, library = layer_of(cell, size, 3.0), layer_of(cell, size, None)
    runs = {
        "ours": lambda: ours(packed, steps, state)[0],
        "loop": lambda: loop(ours, padded, lengths_of),
        "library": lambda: library(packed, steps, state)[0],
    }
    wanted = {
        "ours": [packed, *ours.parameters()],
        "loop": [padded, *ours.parameters()],
        "library": [packed, *library.parameters()],
    }
    with torch.no_grad():
        outputs = runs["ours"](), torch.stack([packing.pack(side) for side in runs["loop"]()]), runs["library"]()
        for other in outputs[1:]:  # clipping at 3 does nothing to a new model on such inputs
            torch.testing.assert_close(outputs[0], other, atol=1e-4, rtol=0)
    return runs, wanted


def in_mode(run: Callable[[], torch.Tensor], wanted: list[torch.Tensor], mode: str) -> Callable[[], None]:
    """A function without a result that does what a mode asks for."""

    def forward() -> None:
        with torch.no_grad():
            run()

    def train() -> None:
        torch.autograd.grad(run().square().sum(), wanted)

    def second() -> None:
        first = torch.autograd.grad(run().square().sum(), wanted, create_graph=True)
        torch.autograd.grad(sum(value.square().sum() for value in first), wanted)

    return {"forward": forward, "train": train, "second": second}[mode]


def measure_recurrence(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name in args.sizes:
        cell, size, batch, _ = args.all_sizes[name]
        runs, wanted = recurrence_runs(cell, size, stand_in_lengths("cola", batch, 40))
        for mode in ("forward", "train", "second"):
            if mode == "second" and name == "original":
                continue  # a graph of graphs of this size is nothing for a small machine
            calls = {who: in_mode(run, wanted[who], mode) for who, run in runs.items()}
            seconds = time_in_turn(calls, args.rounds, clock=args.clock)
            for who, call in calls.items():
                with PeakMemory() as memory:
                    call()
                times = compare(seconds, who, "ours")
                rows.append({"size": name, "mode": mode, "who": who, **times, "peak_bytes": memory.peak_bytes})
    print_table(
        "a layer of both directions: time and memory, and time over ours by fastest (and median) round",
        ("size", "mode", "who", "ms", "over ours", "(median)", "peak MiB"),
        [
            (r["size"], r["mode"], r["who"], r["seconds"] * 1e3, r["ratio"], r["ratio_median"], r["peak_bytes"] / MIB)
            for r in rows
        ],
    )
    return rows


def sentences(args: argparse.Namespace, count: int) -> tuple[list[str], str]:
    """Real sentences, or made-up ones where the file is not there, and which of the two they are."""
    path = Path(args.text_file)
    if path.exists() and not args.quick:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        drawn = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0))[:count].tolist()
        return [lines[index] for index in drawn], path.name
    generator = torch.Generator().manual_seed(0)
    ranks = (torch.rand(count, 20, generator=generator) * 6).exp().long()
    return [" ".join(f"word{rank}" for rank in row) for row in ranks.tolist()], "synthetic"


def measure_characters(args: argparse.Namespace, texts: list[str]) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    encoder = CharacterEncoder(ElmoConfig(filters=FILTERS, projection_size=64, cell_size=65))
    batch = ElmoTokenizer()(texts[: args.batch], padding=True, return_tensors="pt")
    characters = batch["input_ids"][batch["attention_mask"] != 0]

    def everything() -> torch.Tensor:
        embedded = encoder.embedding(characters).transpose(1, 2)
        found = torch.cat([c(embedded).relu().amax(dim=2) for c in encoder.convolutions], dim=1)
        for highway in encoder.highways:
            found = highway(found)
        return encoder.projection(found)

    runs = {"ours": lambda: encoder(characters), "all": everything}
    with torch.no_grad():
        torch.testing.assert_close(runs["ours"](), runs["all"](), atol=1e-5, rtol=0)
    rows = []
    for mode in ("forward", "train"):
        calls = {who: in_mode(run, list(encoder.parameters()), mode) for who, run in runs.items()}
        seconds = time_in_turn(calls, args.rounds, clock=args.clock)
        rows += [{"mode": mode, "who": who, **compare(seconds, who, "ours")} for who in calls]
    distinct = len(characters.unique(dim=0))
    print_table(
        f"token encoder: {len(characters)} tokens of which {distinct} differ",
        ("mode", "who", "ms", "over ours", "(median)"),
        [(row["mode"], row["who"], row["seconds"] * 1e3, row["ratio"], row["ratio_median"]) for row in rows],
    )
    return rows


def measure_step(args: argparse.Namespace, texts: list[str]) -> list[dict[str, Any]]:
    rows = []
    for name in args.sizes:
        if name == "original":
            continue
        cell, size, batch_size, words = args.all_sizes[name]
        tokenizer = ElmoTokenizer.build(texts, vocab_size=words)
        batch = tokenizer(texts[:batch_size], padding=True, return_tensors="pt", return_labels=True)
        tokens = int(batch["attention_mask"].sum())
        # A sentence or two do not fill a vocabulary; how many words there are is what costs.
        sizes = {"filters": FILTERS, "cell_size": cell, "projection_size": size, "vocab_size": words}
        kinds = {
            "clipped": {},
            "not clipped": {"cell_clip": None, "proj_clip": None},
            "clipped, sampled": {"softmax": "sampled", "num_sampled_words": words // 5},
        }
        calls = {}
        for kind, fields in kinds.items():
            torch.manual_seed(0)
            model = ElmoForPreTraining(ElmoConfig(**sizes, **fields)).train()
            calls[kind] = lambda model=model: model(**batch).loss.backward()  # noqa: B023
        seconds = time_in_turn(calls, args.rounds, clock=args.clock)
        for kind in kinds:
            times = compare(seconds, kind, "clipped")
            rows.append({"size": name, "who": kind, **times, "tokens_per_second": tokens / times["seconds"]})
    print_table(
        "training step of the language model",
        ("size", "who", "ms", "over clipped", "(median)", "tokens/s"),
        [
            (r["size"], r["who"], r["seconds"] * 1e3, r["ratio"], r["ratio_median"], r["tokens_per_second"])
            for r in rows
        ],
    )
    return rows


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure the parts asked for, print, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--text_file", default="../shared/data/unlabelled/wiki_sentences.txt.gz", help="a line each")
    parser.add_argument("--rounds", type=int, default=5, help="timed calls of each contender")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="cpu", help="wall, on a machine that does no more")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--output", default="benchmarks/results/elmo_speed.json")
    args = parser.parse_args(argv)
    args.all_sizes, args.batch = (TINY, 3) if args.quick else (SIZES, 32)
    if args.quick:
        args.sizes, args.rounds = list(TINY), 1
    threads_before = torch.get_num_threads()
    torch.set_num_threads(args.threads)
    texts, source = sentences(args, 500)
    settings = {"rounds": args.rounds, "clock": args.clock, "texts": source, "quick": args.quick}
    report: dict[str, Any] = {"machine": machine(), "settings": settings | {"sizes": args.all_sizes}}
    print(report["machine"])
    if "recurrence" in args.parts:
        report["recurrence"] = measure_recurrence(args)
    if "characters" in args.parts:
        report["characters"] = measure_characters(args, texts)
    if "step" in args.parts:
        report["step"] = measure_step(args, texts)
    torch.set_num_threads(threads_before)
    write_json(args.output, report)
    return report


if __name__ == "__main__":
    main()

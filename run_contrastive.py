"""Train sentence embeddings by contrastive learning: on pairs, triplets, single sentences, or both.

    python run_contrastive.py configs/contrastive/supervised.yaml --seeds 1 2 3
    python run_contrastive.py configs/contrastive/minilm/self_supervised.yaml --train_file sentences.txt \\
        --validation_dir my/stsb
    accelerate launch run_contrastive.py configs/contrastive/hybrid.yaml --cache_chunk 64 --output_dir outputs/hybrid
    python run_contrastive.py --encoder FacebookAI/roberta-base --pooler mean --train_file pairs.csv \\
        --validation_file dev.csv --output_dir outputs/own

A YAML file may come first; flags override it. `--help` lists all keys.
"""

from __future__ import annotations

from modeling_hire.data.contrastive_arguments import ContrastiveArguments
from modeling_hire.training.contrastive_arguments import ContrastiveTrainingArguments, PoolingArguments
from modeling_hire.training.embedding import SentenceEmbedding
from modeling_hire.training.script import run_script


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    run_script(
        "run_contrastive.py",
        __doc__,
        SentenceEmbedding,
        ContrastiveArguments,
        ContrastiveTrainingArguments,
        argv,
        model_class=PoolingArguments,
    )


if __name__ == "__main__":
    main()

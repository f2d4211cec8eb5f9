"""Fine-tune HIRE, or the plain head, on GLUE, SNLI, SST-5, TREC or your own files.

    python run_glue.py configs/hire/cola.yaml --seeds 1 2 3
    accelerate launch run_glue.py configs/hire/rte.yaml --output_dir outputs/rte
    python run_glue.py --encoder FacebookAI/roberta-base --train_file train.csv --validation_file dev.csv \
        --output_dir outputs/own
    python run_glue.py --task cola --ensemble outputs/one/seed-1 outputs/other/seed-1 --output_dir outputs/both

A YAML file may come first; flags override it. `--help` lists all keys.
"""

from __future__ import annotations

from modeling_hire.data.arguments import DataArguments
from modeling_hire.training.arguments import RunArguments
from modeling_hire.training.classification import Classification
from modeling_hire.training.script import run_script


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    run_script("run_glue.py", __doc__, Classification, DataArguments, RunArguments, argv)


if __name__ == "__main__":
    main()

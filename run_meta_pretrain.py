"""Pre-train an encoder by meta-learning, or plainly (inner_steps 0), on text, labelled tasks, or both.

    python run_meta_pretrain.py configs/meta/bert_unsupervised.yaml --inner_steps 10
    python run_meta_pretrain.py configs/meta/minilm/unsupervised.yaml --corpus_file wiki.txt --output_dir outputs/meta
    python run_meta_pretrain.py --new_encoder bert --encoder_fields '{"num_hidden_layers": 4, "hidden_size": 256,
        "num_attention_heads": 4, "intermediate_size": 1024}' --corpus_file wiki.txt --output_dir outputs/scratch
    python run_glue.py --encoder outputs/meta/encoder --task rte --output_dir outputs/rte

A YAML file may come first; flags override it. `--help` lists all keys.
"""

from __future__ import annotations

from modeling_hire.data.meta_arguments import MetaDataArguments
from modeling_hire.training.meta_arguments import MetaTrainingArguments, MultiTaskArguments
from modeling_hire.training.pretraining import Pretraining
from modeling_hire.training.script import run_script


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    run_script(
        "run_meta_pretrain.py",
        __doc__,
        Pretraining,
        MetaDataArguments,
        MetaTrainingArguments,
        argv,
        model_class=MultiTaskArguments,
    )


if __name__ == "__main__":
    main()

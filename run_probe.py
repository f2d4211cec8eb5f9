"""Feed every hidden layer of a masked language model to its own output layer, and see which tokens it recognises.

    python run_probe.py google-bert/bert-base-uncased --text_file text.txt
    python run_probe.py CHECKPOINT --dataset sst2 --remove --repeat 2 3 --duplicate first:3 all:2 \
        --sentence "The cat sat on the mat." --output_dir outputs/probe
    python run_probe.py configs/probe/bert.yaml --text_file text.txt --max_tokens 2000

Tables go to the screen; with --output_dir also to a folder, with JSON and pictures. The checkpoint, or a YAML file,
may come first; flags override the file. `--help` lists all keys.
"""

from __future__ import annotations

import sys

from modeling_hire.analysis.reconstruction_arguments import ProbeArguments
from modeling_hire.analysis.reconstruction_run import prepare
from modeling_hire.training.yaml_arguments import YamlArgumentParser


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and run."""
    argv = list(sys.argv[1:] if argv is None else argv)
    # The first words may be a YAML file, a checkpoint, or one after the other.
    place = 1 if argv and argv[0].lower().endswith((".yaml", ".yml")) else 0
    if len(argv) > place and not argv[place].startswith("-"):
        argv[place : place + 1] = ["--checkpoint", argv[place]]
    parser = YamlArgumentParser([ProbeArguments], description=__doc__)
    try:
        run = prepare(*parser.parse(argv))
    except (ValueError, ImportError) as error:
        # What is wrong and what is allowed is in the message; where we noticed is not the user's concern.
        sys.exit(f"run_probe.py: {error}")
    run()


if __name__ == "__main__":
    main()

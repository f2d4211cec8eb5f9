"""Where the tables of contrastive training come from: files, the Hub, or a local folder."""

from __future__ import annotations

import re
from pathlib import Path

from .contrastive_arguments import ContrastiveArguments
from .hub_files import local_file
from .messages import did_you_mean, listing
from .paraphrases import PREFIX, generated_table
from .readers import SUFFIXES, Table, read_lines, read_table
from .sources import HubUnreachableError, read_hub, split_file
from .tasks import TaskSpec


TEXT_SUFFIXES = (".txt", ".txt.gz")
_OTHER_SPLITS = re.compile(r"(validation|valid|dev|test|trial)([_.-].*)?", re.IGNORECASE)


def read_texts(path: str) -> Table:
    """Read a table, or a plain text file as a table with the one column `text`.

    Args:
        path: A local file, one on the Hub (see `local_file`), or the name of a generated one (see `paraphrases`).

    Raises:
        ValueError: As `read_table` and `read_lines`; also for an unknown format.
    """
    if path.startswith(PREFIX):
        return generated_table(path)
    file = local_file(path)
    name = path.lower()
    if name.endswith(TEXT_SUFFIXES):
        table = Table({"text": read_lines(file)}, path)
    elif not name.endswith(SUFFIXES) and Path(file).is_file():
        raise ValueError(
            f"Data file {path!r} has an unknown format: expected a name ending in "
            f"{listing((*SUFFIXES, *TEXT_SUFFIXES))}"
        )
    else:
        table = read_table(file)
        # The local copy of a file on the Hub lies at a path that says little.
        table.source = path
    return table


def training_tables(args: ContrastiveArguments, notes: list[str]) -> list[Table]:
    """Read the training data; adds to `notes` what the user should know.

    Raises:
        HubUnreachableError: If it is on the Hub and there is no network.
        ValueError: If there is none, or it cannot be read.
    """
    if args.train_file is not None:
        return [read_texts(path) for path in args.train_file]
    if args.dataset_dir is not None:
        path = _folder_train_file(Path(args.dataset_dir))
        if not path.name.lower().startswith("train."):
            notes.append(f"{path} is the training data: it is the only data file of dataset_dir.")
        return [read_texts(str(path))]
    if args.dataset_name is not None:
        return [_read_hub_train(args)]
    raise ValueError(
        "There is nothing to train on: give train_file, dataset_name or dataset_dir; to evaluate only, set "
        "num_train_epochs=0"
    )


def _folder_train_file(folder: Path) -> Path:
    """The file called train, or the only one that is not called after another split."""
    if not folder.is_dir():
        raise ValueError(f"dataset_dir={str(folder)!r} is not a folder")
    files = sorted(path for path in folder.iterdir() if path.name.lower().endswith((*SUFFIXES, *TEXT_SUFFIXES)))
    named = [path for path in files if path.name.lower().removeprefix("train") in (*SUFFIXES, *TEXT_SUFFIXES)]
    found = named or [path for path in files if not _OTHER_SPLITS.match(path.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"dataset_dir={str(folder)!r} has several files that may be the training data "
            f"({listing(path.name for path in found)}): name those you mean by train_file"
        )
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    raise ValueError(
        f"dataset_dir={str(folder)!r} has no file such as 'train.jsonl' or 'train.txt.gz'"
        + (f"; its folders are {listing(folders)}" if folders else "")
    )


def _read_hub_train(args: ContrastiveArguments) -> Table:
    # What reading needs to know of a dataset; the rest of a task's description does not matter here.
    spec = TaskSpec(
        name=args.dataset_name,
        title=args.dataset_name,
        text_columns=("text",),
        label_names=None,
        metrics=("spearman",),
        main_metric="spearman",
        hub_path=args.dataset_name,
        hub_config=args.dataset_config,
        evaluation_splits=(),
        test_splits=(),
    )
    try:
        tables = read_hub(spec, args.dataset_revision, evaluation_only=False)
    except HubUnreachableError as error:
        raise HubUnreachableError(
            f"No connection to the Hub, and dataset_name={args.dataset_name!r} is not in the local cache. To work "
            "without the Hub, give --train_file FILE or --dataset_dir DIR."
        ) from error
    except ValueError as error:
        cause = error.__cause__ or error
        raise ValueError(
            f"dataset_name={args.dataset_name!r} (dataset_config={args.dataset_config!r}, "
            f"dataset_revision={args.dataset_revision!r}) could not be loaded from the Hub: "
            f"{type(cause).__name__}: {cause}"
        ) from error
    if "train" not in tables:
        raise ValueError(f"dataset_name={args.dataset_name!r} has no train split")
    return tables["train"]


def evaluation_tables(args: ContrastiveArguments, notes: list[str]) -> dict[str, Table]:
    """Read the scored pairs, by the name of their split; adds to `notes` what the user should know.

    Raises:
        HubUnreachableError: If they are on the Hub and there is no network.
        ValueError: If a named file or folder is missing, or cannot be read.
    """
    paths: dict[str, str] = {}
    if args.validation_dir is not None:
        paths = _folder_evaluation_files(Path(args.validation_dir), notes)
    if args.validation_file is not None:
        paths["validation"] = str(args.validation_file)
    if args.test_file is not None:
        paths["test"] = str(args.test_file)
        notes[:] = [note for note in notes if not note.startswith(_partial(args.validation_dir))]
    return {split: read_texts(path) for split, path in paths.items()}


def _partial(folder: str | Path | None) -> str:
    return f"{folder}: the test split is only a part"


def _folder_evaluation_files(folder: Path, notes: list[str]) -> dict[str, str]:
    if not folder.is_dir():
        raise ValueError(f"validation_dir={str(folder)!r} is not a folder")
    validation = next((file for name in ("validation", "dev") if (file := split_file(folder, name))), None)
    test, part = split_file(folder, "test"), split_file(folder, "test_part1")
    if validation is None:
        names = sorted(path.name for path in folder.iterdir())
        near = did_you_mean("validation.jsonl", names)
        hint = f". To score the test split only, give test_file={str(test)!r}" if test else near
        raise ValueError(
            f"validation_dir={str(folder)!r} has no file such as 'validation.jsonl'; it holds {listing(names)}{hint}"
        )
    paths = {"validation": str(validation)}
    if test or part:
        paths["test"] = str(test or part)
    if part and not test:
        notes.append(f"{_partial(folder)} ({part.name}): scores on it are not official.")
    return paths

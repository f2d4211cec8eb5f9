"""Where the splits of a task come from: the Hub, a local folder, or the generator of the acceptability task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .messages import listing
from .readers import SUFFIXES, Table, read_table
from .tasks import TASKS, TaskSpec


# The Hub converts each dataset to Parquet on this branch; datasets 4 and later refuse those that are a script.
PARQUET_BRANCH = "refs/convert/parquet"
_LOCAL_OPTIONS = (
    "To work without the Hub, give --dataset_dir DIR (a folder with <task>/<split>.jsonl) or --train_file FILE with "
    "--validation_file FILE; --task acceptability is generated and needs neither"
)
_NETWORK_ERRORS = frozenset(
    {
        "ConnectionError",
        "LocalEntryNotFoundError",
        "OfflineModeIsEnabled",
        "TimeoutError",
        "TransportError",
        "gaierror",
    }
)


class HubUnreachableError(ConnectionError, ValueError):
    """The Hub could not be reached; the message says which local options there are."""


def wanted_splits(spec: TaskSpec, evaluation_only: bool) -> list[str]:
    """Return the names of the splits to look for, each once."""
    train = () if evaluation_only else ("train",)
    return list(dict.fromkeys((*train, *spec.evaluation_splits, *spec.test_splits)))


# ---- the Hub --------------------------------------------------------------------------------------------------------


def read_hub(spec: TaskSpec, revision: str | None, evaluation_only: bool) -> dict[str, Table]:
    """Load a task's splits from the Hub, or from its local cache.

    Args:
        spec: The task; `hub_path` and `hub_config` say what to load.
        revision: Commit, tag or branch of the dataset; `None` means its main branch.
        evaluation_only: Leave the training split out.

    Raises:
        HubUnreachableError: If there is no network and the dataset is not in the cache.
        ValueError: If the dataset cannot be loaded for another reason.
    """
    # Imported here: files and the generated task do without it, and it takes a while to load.
    from datasets import ClassLabel

    content = _load_hub_dataset(spec, revision)
    tables = {}
    for split in wanted_splits(spec, evaluation_only):
        if split not in content:
            continue
        dataset = content[split]
        names = {name: list(f.names) for name, f in dataset.features.items() if isinstance(f, ClassLabel)}
        columns = {name: list(dataset[name][:]) for name in dataset.column_names}
        tables[split] = Table(columns, f"{_hub_name(spec)}, split {split}", class_names=names)
    return tables


def _load_hub_dataset(spec: TaskSpec, revision: str | None) -> Any:
    """Call `datasets.load_dataset`, once more on the Parquet branch for datasets that are a script."""
    from datasets import load_dataset

    try:
        try:
            return load_dataset(spec.hub_path, spec.hub_config, revision=revision)
        except RuntimeError as error:
            if revision is not None or "scripts are no longer supported" not in str(error):
                raise
            return load_dataset(spec.hub_path, spec.hub_config, revision=PARQUET_BRANCH)
    # Whatever goes wrong in there, the user needs to read which dataset it was and what else can be done.
    except Exception as error:
        if is_network_error(error):
            raise HubUnreachableError(
                f"No connection to the Hub, and {_hub_name(spec)} is not in the local cache ({error}). "
                f"{_LOCAL_OPTIONS}."
            ) from error
        raise ValueError(
            f"{_hub_name(spec)} could not be loaded from the Hub (revision={revision!r}): {type(error).__name__}: "
            f"{error}. {_LOCAL_OPTIONS}."
        ) from error


def _hub_name(spec: TaskSpec) -> str:
    return f"{spec.hub_path} ({spec.hub_config})" if spec.hub_config else str(spec.hub_path)


def is_network_error(error: BaseException | None) -> bool:
    """Whether this error, or one that led to it, means that the Hub could not be reached."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        # By name, because the HTTP library below has changed before.
        if _NETWORK_ERRORS & {cls.__name__ for cls in type(error).__mro__}:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


# ---- a local folder -------------------------------------------------------------------------------------------------


def read_folder(spec: TaskSpec, folder: str, evaluation_only: bool) -> tuple[dict[str, Table], list[str]]:
    """Read a task's splits from `folder/<task>/<split>.<format>`, or `folder/<split>.<format>`.

    A test or evaluation split of which only a part is there may be called `<split>_part1`.

    Args:
        spec: The task.
        folder: The folder that holds the task's folder, or the task's folder itself.
        evaluation_only: Leave the training split out.

    Returns:
        The splits that are there, and notes for the user.

    Raises:
        ValueError: If the folder or all files are missing, the folder is another task's, or a file cannot be read.
    """
    home = _task_folder(spec, Path(folder))
    tables: dict[str, Table] = {}
    notes: list[str] = []
    for split in wanted_splits(spec, evaluation_only):
        path = split_file(home, split)
        if path is None and split != "train":
            path = split_file(home, f"{split}_part1")
            if path is not None:
                notes.append(f"{path} is only a part of {spec.title}'s {split} split: scores on it are not official.")
        if path is not None:
            tables[split] = read_table(path)
    return tables, notes


def _task_folder(spec: TaskSpec, root: Path) -> Path:
    """Return the folder that holds the task's split files."""
    if not root.is_dir():
        raise ValueError(f"dataset_dir={str(root)!r} is not a folder")
    if (root / spec.name).is_dir():
        return root / spec.name
    own_name = root.resolve().name.lower()
    # The columns of many tasks look alike, so reading another task's folder would go unnoticed.
    if own_name in TASKS and own_name != spec.name:
        raise ValueError(f"dataset_dir={str(root)!r} is the folder of task {own_name!r}, but task={spec.name!r}")
    if any(split_file(root, split) for split in ("train", *spec.evaluation_splits, *spec.test_splits)):
        return root
    below = sorted(path.parent for path in root.glob(f"*/{spec.name}") if path.is_dir())
    hint = f" Did you mean {str(below[0])!r}?" if below else ""
    raise ValueError(
        f"dataset_dir={str(root)!r} has no folder {spec.name!r} and no files such as 'train.jsonl' or "
        f"'{(*spec.evaluation_splits, 'test')[0]}.jsonl.gz'.{hint}"
    )


def split_file(folder: Path, split: str) -> Path | None:
    """Return the one file of a split, or `None`."""
    found = [folder / f"{split}{suffix}" for suffix in SUFFIXES if (folder / f"{split}{suffix}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder} has several files for the split {split!r}: {listing(path.name for path in found)}")
    return found[0] if found else None


# ---- generated ------------------------------------------------------------------------------------------------------


def generate(spec: TaskSpec, seed: int, evaluation_only: bool) -> dict[str, Table]:
    """Generate the acceptability task.

    Args:
        spec: The task.
        seed: Seed of the generator.
        evaluation_only: Leave the training split out.
    """
    from .acceptability import generate_acceptability

    splits: dict[str, Sequence[dict[str, Any]]] = generate_acceptability(seed=seed)
    tables = {}
    for split in wanted_splits(spec, evaluation_only):
        rows = splits.get(split)
        if rows:
            tables[split] = Table({name: [row[name] for row in rows] for name in rows[0]}, f"generated {split} split")
    return tables

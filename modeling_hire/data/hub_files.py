"""Single files of datasets on the Hub, named like local ones."""

from __future__ import annotations

import re

from .sources import HubUnreachableError, is_network_error


_PREFIX = "hf://"
_HUB_FILE = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?/(.+)")


def local_file(path: str) -> str:
    """Return the path of a local file: `path` itself, or the local copy of a file on the Hub, fetched if need be.

    Args:
        path: A local path, or `hf://datasets/OWNER/NAME/FILE`, with a commit, tag or branch as
            `hf://datasets/OWNER/NAME@REVISION/FILE`.

    Raises:
        HubUnreachableError: If there is no network and no local copy.
        ValueError: If the name is not of that form, or there is no such dataset, revision or file.

    Example:

    ```python
    >>> from modeling_hire.data.hub_files import local_file

    >>> local_file("data/train.jsonl")
    'data/train.jsonl'
    >>> local_file("hf://train.jsonl")
    Traceback (most recent call last):
        ...
    ValueError: 'hf://train.jsonl': a file of a dataset on the Hub is named hf://datasets/OWNER/NAME/FILE or
    hf://datasets/OWNER/NAME@REVISION/FILE
    ```
    """
    if not path.startswith(_PREFIX):
        return path
    match = _HUB_FILE.fullmatch(path)
    if match is None:
        raise ValueError(
            f"{path!r}: a file of a dataset on the Hub is named hf://datasets/OWNER/NAME/FILE or "
            "hf://datasets/OWNER/NAME@REVISION/FILE"
        )
    from huggingface_hub import hf_hub_download

    name, revision, file = match.groups()
    try:
        return hf_hub_download(name, file, repo_type="dataset", revision=revision)
    # Whatever goes wrong in there, the user needs to read which file it was and what else can be done.
    except Exception as error:
        if is_network_error(error):
            raise HubUnreachableError(
                f"No connection to the Hub, and {path} is not in the local cache. To work without the Hub, name a "
                "local file instead."
            ) from error
        raise ValueError(f"{path} could not be loaded from the Hub: {type(error).__name__}: {error}") from error

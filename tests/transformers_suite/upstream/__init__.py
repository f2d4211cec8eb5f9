"""transformers' own tests as a package: the downloaded files, and stand-ins for what they import and lack.

`test_modeling_common.py` imports two neighbours that are not in the source distribution. The stand-ins are here; the
rest is looked up in the download, so that nothing of transformers is copied into this repository. Without the
download, a test module that imports this is skipped.
"""

import sys

import pytest

from ..download import FOLDER, why_missing


if (_reason := why_missing()) is not None:
    pytest.skip(_reason, allow_module_level=True)

__path__.append(str(FOLDER))
sys.path.append(str(FOLDER / "packages"))

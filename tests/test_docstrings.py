"""The examples in the docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import modeling_hire


PACKAGE = Path(modeling_hire.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = [module_name(path) for path in sorted(PACKAGE.rglob("*.py")) if ">>>" in path.read_text(encoding="utf-8")]


class Unfenced(doctest.DocTestParser):
    """Reads examples inside Markdown fences, whose closing line is no output."""

    def parse(self, string: str, name: str = "<string>") -> list:
        return super().parse(re.sub(r"(?m)^\s*```\w*$", "", string), name)


def test_there_are_some() -> None:
    assert {"modeling_hire.modeling_hire", "modeling_hire.configuration_hire"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    runner, report = doctest.DocTestRunner(optionflags=FLAGS), []
    examples = 0
    for test in doctest.DocTestFinder(parser=Unfenced()).find(module, name):
        examples += len(test.examples)
        runner.run(test, out=report.append)
    assert examples == Path(module.__file__).read_text(encoding="utf-8").count(">>> "), "some were not found"
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("name", modeling_hire.__all__)
def test_public_classes_are_documented_with_an_example(name: str) -> None:
    documentation = getattr(modeling_hire, name).__doc__ or ""
    assert len(documentation) > 40
    if name not in ("LayerwisePreTrainedModel", "RobertaHireModel"):
        assert ">>>" in documentation

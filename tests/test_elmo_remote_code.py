"""ELMo's checkpoints carry their code: models and tokenizer load in a process that cannot import this library."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_elmo import TEXTS, elmo_tokenizer, tiny_elmo

import modeling_hire
from modeling_hire.configuration_elmo import ElmoConfig
from modeling_hire.modeling_elmo import ElmoForPreTraining, ElmoForSequenceClassification, ElmoModel


PROCESS = Path(__file__).with_name("elmo_process.py")
PACKAGE = Path(modeling_hire.__file__).parent
CLASSES = {
    "bare": (ElmoModel, "AutoModel"),
    "words": (ElmoForPreTraining, "AutoModelForPreTraining"),
    "sequences": (ElmoForSequenceClassification, "AutoModelForSequenceClassification"),
}
ENTRIES = [entry for entry in ElmoConfig.auto_classes if entry != "AutoConfig"]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    root = tmp_path_factory.mktemp("remote")
    tokenizer = elmo_tokenizer()
    for name, (model_class, own) in CLASSES.items():
        model = tiny_elmo(model_class, vocab_size=tokenizer.vocab_size)
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
        texts = (list(TEXTS[:2]), list(TEXTS[2:])) if name == "sequences" else (list(TEXTS),)
        batch = tokenizer(*texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            expected = {
                "texts": texts,
                "batch": dict(batch),
                "words": tokenizer.words,
                "outputs": list(model(**batch).to_tuple()),
                "hidden": model.base_model(**batch).last_hidden_state,
                "base": model.base_model.state_dict(),
            }
        torch.save(expected, root / name / "expected.pt")
        (root / name / "own.json").write_text(json.dumps(own))
    variables = {"HF_MODULES_CACHE": str(root / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-I", str(PROCESS), str(root)], cwd=root, env=os.environ | variables, check=True, timeout=600
    )
    return json.loads((root / "findings.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", CLASSES)
def test_loads_without_the_library(findings: dict[str, list[str]], name: str, entry: str) -> None:
    # A language model reads no pairs, so its entry cannot serve the classifier's texts.
    if (name, entry) == ("sequences", "AutoModelForPreTraining"):
        assert "token_type_ids of pairs: allowed are single texts" in findings[f"{name}:{entry}"][0]
    else:
        assert findings[f"{name}:{entry}"] == []


@pytest.mark.slow
def test_checked_everything(findings: dict[str, list[str]]) -> None:
    assert findings.keys() == {*(f"{name}:{entry}" for name in CLASSES for entry in ENTRIES), "importable"}
    assert findings["importable"] == []


def test_the_tokenizer_imports_nothing_but_its_neighbours() -> None:
    for path in PACKAGE.glob("tokenization_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= sys.stdlib_module_names
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module.startswith(("configuration_elmo", "tokenization_elmo"))
            elif isinstance(node, ast.ImportFrom):
                assert node.module.partition(".")[0] in {*sys.stdlib_module_names, "transformers"}

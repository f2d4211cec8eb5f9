"""A checkpoint carries its code: every saved class loads in a process that cannot import this library."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_models import enliven, tiny_batch, tiny_model, tiny_tokenizer
from transformers import PreTrainedModel

import modeling_hire
from modeling_hire import (
    BertWithDuplicatedLayers,
    BertWithDuplicatedLayersConfig,
    BertWithDuplicatedLayersForMaskedLM,
    BertWithDuplicatedLayersForQuestionAnswering,
    BertWithDuplicatedLayersForSequenceClassification,
    HireConfig,
    HireForMultipleChoice,
    HireForQuestionAnswering,
    HireForSequenceClassification,
    HireForTokenClassification,
    HireModel,
    LayerAttnPoolConfig,
    LayerAttnPoolEncoder,
    RobertaForHIRE,
    RobertaHireConfig,
    RobertaHireModel,
)


PACKAGE = Path(modeling_hire.__file__).parent
TRAVELLING = sorted([*PACKAGE.glob("configuration_*.py"), *PACKAGE.glob("modeling_*.py")])
PROCESS = Path(__file__).with_name("remote_code_process.py")
# Each class with the auto class that is its own.
CLASSES: dict[str, tuple[type[PreTrainedModel], str]] = {
    "bare": (HireModel, "AutoModel"),
    "sequences": (HireForSequenceClassification, "AutoModelForSequenceClassification"),
    "tokens": (HireForTokenClassification, "AutoModelForTokenClassification"),
    "questions": (HireForQuestionAnswering, "AutoModelForQuestionAnswering"),
    "choices": (HireForMultipleChoice, "AutoModelForMultipleChoice"),
    "planned": (HireForSequenceClassification, "AutoModelForSequenceClassification"),
    "paper": (RobertaForHIRE, "AutoModelForSequenceClassification"),
    "paper-bare": (RobertaHireModel, "AutoModel"),
    "duplicated-bare": (BertWithDuplicatedLayers, "AutoModel"),
    "duplicated-words": (BertWithDuplicatedLayersForMaskedLM, "AutoModelForMaskedLM"),
    "duplicated-sequences": (BertWithDuplicatedLayersForSequenceClassification, "AutoModelForSequenceClassification"),
    "duplicated-questions": (BertWithDuplicatedLayersForQuestionAnswering, "AutoModelForQuestionAnswering"),
    "sentences": (LayerAttnPoolEncoder, "AutoModel"),
    "sentences-planned": (LayerAttnPoolEncoder, "AutoModel"),
    "untied-questions": (BertWithDuplicatedLayersForQuestionAnswering, "AutoModelForQuestionAnswering"),
}
CHECKS = [
    f"{name}:{entry}"
    for name, (model_class, own) in CLASSES.items()
    for entry in (
        *(entry for entry in model_class.config_class.auto_classes if entry != "AutoConfig"),
        *(["pipeline"] if own == "AutoModelForSequenceClassification" else []),
        *(["encode"] if model_class is LayerAttnPoolEncoder else []),
    )
]


def build(name: str, model_class: type[PreTrainedModel]) -> PreTrainedModel:
    if name.startswith("paper"):
        return enliven(model_class(RobertaHireConfig.preset("paper", tiny_encoder_config("roberta")))).eval()
    if "duplicated" in name or "untied" in name:
        fields = tiny_encoder_config("bert").to_dict()
        fields |= {"layer_sources": [0, 0, 1]} if "untied" in name else {"layer_plan": [0, 0, 1, 2]}
        fields = {key: value for key, value in fields.items() if key != "model_type"}
        return enliven(model_class(BertWithDuplicatedLayersConfig(**fields))).eval()
    if "sentences" in name and model_class is LayerAttnPoolEncoder:
        plan = [0, 0, 1, 2] if "planned" in name else None
        encoder_config = tiny_encoder_config("modernbert" if plan else "roberta")
        return enliven(model_class(LayerAttnPoolConfig(encoder_config=encoder_config, layer_plan=plan))).eval()
    if name == "planned":
        return tiny_model("fast", "modernbert", model_class, layer_plan=[0, 0, 1, 2, 2])
    return tiny_model("paper", "bert", model_class)


def save(folder: Path, model: PreTrainedModel, own: str) -> None:
    """Save a model, and beside it what it answers."""
    plain = tiny_batch((9, 6))
    choices = {key: value[None] for key, value in plain.items()}
    batch = choices if isinstance(model, HireForMultipleChoice) else plain
    bare = model.base_model
    tokenizer = tiny_tokenizer()
    texts = tokenizer(["w1 w2 w3", "w4"], padding=True, return_tensors="pt")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with torch.no_grad():
        expected = {
            "batch": batch,
            "plain_batch": plain,
            "choice_batch": choices,
            "outputs": list(model(**batch).to_tuple()),
            "hidden": bare(**plain).last_hidden_state,
            "base": {key: value for key, value in bare.state_dict().items() if not key.startswith("pooler.")},
        }
        if own == "AutoModelForSequenceClassification":
            ids = {key: texts[key] for key in ("input_ids", "attention_mask")}
            expected["pipeline"] = model(**ids).logits.softmax(dim=1)
    if isinstance(model, LayerAttnPoolEncoder):
        expected["encode"] = model.encode(["w1 w2 w3", "", "w4"], tokenizer=tokenizer, convert_to_tensor=True)
    torch.save(expected, folder / "expected.pt")
    (folder / "own.json").write_text(json.dumps(own))


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """One process for all: starting it takes longer than any check."""
    root = tmp_path_factory.mktemp("remote")
    for name, (model_class, own) in CLASSES.items():
        save(root / name, build(name, model_class), own)
    variables = {"HF_MODULES_CACHE": str(root / "modules"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-I", str(PROCESS), str(root)], cwd=root, env=os.environ | variables, check=True, timeout=600
    )
    return json.loads((root / "findings.json").read_text())


@pytest.mark.slow
class TestFreshProcess:
    @pytest.mark.parametrize("check", CHECKS)
    def test_loads_without_the_library(self, findings: dict[str, list[str]], check: str) -> None:
        assert findings[check] == []

    def test_checked_everything(self, findings: dict[str, list[str]]) -> None:
        assert findings.keys() == {*CHECKS, "not importable"}
        assert findings["not importable"] == []


class TestTravellingFiles:
    """`save_pretrained` follows `from .name import` only, and the Hub checks that everything else is installed."""

    @pytest.fixture(params=TRAVELLING, ids=lambda path: path.name)
    def file(self, request: pytest.FixtureRequest) -> Path:
        return request.param

    def test_import_torch_transformers_and_neighbours_only(self, file: Path) -> None:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= {*sys.stdlib_module_names, "torch"}
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1 and node.module and "." not in node.module, ast.unparse(node)
                assert file.with_name(f"{node.module}.py") in TRAVELLING, ast.unparse(node)
            elif isinstance(node, ast.ImportFrom):
                root = node.module.partition(".")[0]
                assert root in {*sys.stdlib_module_names, "torch", "transformers"}, ast.unparse(node)

    def test_have_no_relative_import_outside_the_code(self, file: Path) -> None:
        # The copier reads the text line by line: one in a docstring counts too, and fails.
        pattern = r"^\s*(?:from|import)\s+\.+(\S*)"
        in_text = re.findall(pattern, file.read_text(), re.MULTILINE)
        nodes = ast.walk(ast.parse(file.read_text()))
        in_code = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.level]
        assert sorted(in_text) == sorted(in_code)

    def test_never_ask_for_a_class_that_is_there_twice(self, file: Path) -> None:
        # Loaded from a folder, the config's class and the one that the modelling file imports are two.
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                assert not re.search(r"\b(?!PreTrained)\w+Config\b", ast.unparse(node.args[1])), ast.unparse(node)

    def test_are_all_copied(self, tmp_path: Path) -> None:
        tiny_model("fast").save_pretrained(tmp_path)
        copied = {path.name for path in tmp_path.glob("*.py")}
        assert copied == {
            "configuration_hire.py",
            "configuration_layer_plans.py",
            "configuration_layerwise.py",
            "modeling_encoder_layers.py",
            "modeling_gru.py",
            "modeling_hire.py",
            "modeling_hire_layers.py",
            "modeling_hire_outputs.py",
            "modeling_inputs.py",
            "modeling_layerwise.py",
            "modeling_losses.py",
        }
        for path in tmp_path.glob("*.py"):
            assert path.read_bytes() == (PACKAGE / path.name).read_bytes()

    def test_every_entry_of_a_map_exists(self) -> None:
        for config_class in (HireConfig, RobertaHireConfig, BertWithDuplicatedLayersConfig, LayerAttnPoolConfig):
            for entry in config_class.auto_classes.values():
                module, _, name = entry.partition(".")
                assert re.search(rf"^class {name}\b", (PACKAGE / f"{module}.py").read_text(), re.MULTILINE)

"""Publishing: what would be uploaded, and what a card says. No byte leaves this machine."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.utils import filter_repo_objects
from tiny_models import tiny_model, tiny_tokenizer
from tiny_runs import glue, save_encoder, texts_of, write_task

from modeling_hire.hub import peft_modules, publish, warn_if_moving, write_model_card


CODE = {
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
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StandIn:
    """Takes the two calls of the Hub's client that `publish` makes, and notes what would be uploaded."""

    def __init__(self, **kwargs: Any):
        self.given, self.created, self.uploads = kwargs, [], []

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> SimpleNamespace:
        self.created.append((repo_id, private, exist_ok))
        return SimpleNamespace(repo_id=repo_id if "/" in repo_id else f"somebody/{repo_id}")

    def upload_folder(
        self, *, repo_id: str, folder_path: str, commit_message: str, allow_patterns: list, ignore_patterns: list
    ) -> SimpleNamespace:
        folder = Path(folder_path)
        paths = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
        kept = filter_repo_objects(paths, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)
        self.uploads.append((repo_id, folder, list(kept)))
        return SimpleNamespace(oid=COMMIT)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[StandIn]:
    """The clients that the script makes."""
    made: list[StandIn] = []

    def client(**kwargs: Any) -> StandIn:
        made.append(StandIn(**kwargs))
        return made[-1]

    monkeypatch.setattr("modeling_hire.hub.HfApi", client)
    # Tests run offline, and this stand-in needs no network.
    monkeypatch.setattr("modeling_hire.training.preparation.constants", SimpleNamespace(HF_HUB_OFFLINE=False))
    return made


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    write_task(folder / "data", "cola", train=10, evaluation=6)
    return folder


@pytest.fixture(scope="module")
def flags(base: Path) -> tuple[Any, ...]:
    named = ("--encoder", base / "encoder", "--task", "cola", "--dataset_dir", base / "data")
    return (*named, "--num_train_epochs", 1, "--picture_examples", 4)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    tiny_model("fast").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_files_that_a_run_publishes(flags: tuple[Any, ...], tmp_path: Path, hub: list[StandIn]) -> None:
    run = tmp_path / "hire-cola"
    glue(run, *flags, "--keep_checkpoints", "true", "--push_to_hub", "true", "--hub_token", "secret")
    (api,) = hub
    assert api.given == {"token": "secret"} and api.created == [("hire-cola", False, True)]
    ((repository, folder, files),) = api.uploads
    assert repository == "somebody/hire-cola" and folder == run
    model = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    results = {"results.json", "results.md", "run.json", "seed.json", "CoLA.tsv"}
    assert set(files) == CODE | model | results | {"layer_importance.json", "layer_importance.png"}
    assert list(run.glob("checkpoint-*")), "checkpoints are there, and stay"
    texts = {name: text for name, text in texts_of(run).items() if name in files}
    assert not [name for name, text in texts.items() if str(tmp_path.parent) in text or "secret" in text]
    # The owner is known now, so that the card can be copied from.
    assert 'name, revision = "somebody/hire-cola", "<commit sha>"' in texts["README.md"]


def test_the_best_seed_is_published(
    flags: tuple[Any, ...], tmp_path: Path, hub: list[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {1: 0.1, 2: 0.9, 3: 0.5}
    monkeypatch.setattr(
        "modeling_hire.training.running.evaluate",
        lambda trainer, run: {"validation": {"matthews_correlation": scores[trainer.args.seed]}},
    )
    seeds = ("--seeds", 1, 2, 3, "--fusion_num_layers", 0, "--picture_examples", 0)
    push = ("--push_to_hub", "true", "--hub_model_id", "lab/hire", "--hub_private_repo", "true")
    glue(tmp_path / "run", *flags, *seeds, *push)
    (api,) = hub
    assert api.created == [("lab/hire", True, True)]
    assert [(repository, folder.name) for repository, folder, _ in api.uploads] == [("lab/hire", "seed-2")]
    # Once finished, a resumed run publishes the same.
    glue(tmp_path / "run", *flags, *seeds, *push, "--resume", "true")
    assert [folder.name for _, folder, _ in hub[1].uploads] == ["seed-2"]


def test_nothing_dangerous_or_private_is_published(checkpoint: Path) -> None:
    for name in ("optimizer.pt", "training_args.bin", "rng_state.pth", "weights.pkl", ".env", "notes.csv", "run.log"):
        (checkpoint / name).write_text("private")
    for name in ("checkpoint-3/model.safetensors", "seed-1/config.json", "__pycache__/a.py", "runs/x/events.json"):
        (checkpoint / name).parent.mkdir(parents=True)
        (checkpoint / name).write_text("private")
    api = StandIn()
    assert publish(checkpoint, "me/mine", api=api) == COMMIT
    ((_, _, files),) = api.uploads
    assert set(files) == CODE | {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def test_code_of_another_repository_is_refused(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text())
    config["auto_map"]["AutoModel"] = "other/repo--modeling_hire.HireModel"
    (checkpoint / "config.json").write_text(json.dumps(config))
    api = StandIn()
    with pytest.raises(ValueError, match=r"auto_map.*other/repo--modeling_hire\.HireModel"):
        publish(checkpoint, "me/mine", api=api)
    assert not api.created


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"config\.json and \*\.safetensors"):
        publish(tmp_path, "me/mine", api=StandIn())


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:7], COMMIT.upper(), COMMIT + "0"])
def test_moving_revisions(revision: str | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_moving(revision)
    assert "no full commit id" in caplog.text


def test_a_full_commit_does_not_move(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_if_moving(COMMIT)
    assert not caplog.text


def test_card_names_base_data_and_results(tmp_path: Path) -> None:
    path = write_model_card(
        tmp_path,
        title="RTE: HIRE on FacebookAI/roberta-large",
        description="Fine-tuned.",
        repository="me/hire-rte",
        base_model="FacebookAI/roberta-large",
        dataset="nyu-mll/glue",
        dataset_config="rte",
        metrics={"validation": {"accuracy": 0.87654321}},
        settings={"seed": 1},
        layer_weights={1: 0.25, 2: 0.75},
    )
    data = ModelCard.load(path).data
    assert data.base_model == "FacebookAI/roberta-large" and data.datasets == ["nyu-mll/glue"]
    (result,) = data.eval_results
    assert (result.dataset_config, result.dataset_split, result.metric_type) == ("rte", "validation", "accuracy")
    assert result.metric_value == pytest.approx(0.876543)
    text = path.read_text()
    assert "| 2 | 0.7500 |" in text and "layer_importance.png" not in text, "no picture, no link to it"


@pytest.mark.parametrize(("cap", "in_part"), [(5, True), (6, True), (7, False), (None, False)])
def test_scores_of_a_part_of_a_split_are_not_claimed_for_all_of_it(
    cap: int | None, in_part: bool, flags: tuple[Any, ...], tmp_path: Path
) -> None:
    caps = () if cap is None else ("--max_eval_samples", cap)
    glue(tmp_path / "run", *flags, *caps, "--max_train_samples", 8)
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert card.data.metrics == ["matthews_correlation"] and card.data.datasets == ["nyu-mll/glue"]
    assert (card.data.eval_results is None) is in_part
    # Six rows are there; that a cap of six leaves none out is not known.
    assert (f"| validation ({cap} rows of it) |" in card.text) is in_part and "matthews_correlation" in card.text
    assert ("| validation |" in card.text) is not in_part


def test_card_without_results(tmp_path: Path) -> None:
    write_model_card(
        tmp_path,
        title="Mine",
        description="",
        repository="mine",
        base_model=None,
        dataset=None,
        metrics={},
        settings={},
        custom_code=False,
    )
    assert "Not evaluated." in (tmp_path / "README.md").read_text()


def test_peft_modules_of_a_plain_model() -> None:
    from tiny_encoders import tiny_encoder_config
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_config(tiny_encoder_config("bert"))
    assert peft_modules(model) == {"target_modules": ["query", "value"], "modules_to_save": ["pooler", "classifier"]}

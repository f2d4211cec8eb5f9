"""Layer importance: collecting weights, the JSON and the picture of one model, the joined picture of several."""

from __future__ import annotations

import builtins
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from modeling_hire.analysis import collect_layer_weights, join_layer_importance, save_layer_importance
from modeling_hire.analysis.layer_importance import main


PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class FakeHire(nn.Module):
    """Scores three layers from the sum of an example's ids; has a dropout, to see whether evaluation mode is on."""

    def __init__(self) -> None:
        super().__init__()
        self.scorer = nn.Linear(1, 3)
        self.dropout = nn.Dropout(0.5)
        self.seen: list[tuple[bool, bool]] = []

    @property
    def device(self) -> torch.device:
        return self.scorer.weight.device

    def forward(self, input_ids, labels=None, output_layer_weights=False):
        self.seen.append((self.training, torch.is_grad_enabled()))
        scores = self.scorer(self.dropout(input_ids.sum(1, keepdim=True).float()))
        return SimpleNamespace(layer_weights=scores.softmax(-1) if output_layer_weights else None)


def random_weights(num_examples: int, num_layers: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(num_layers), num_examples)


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def pictures_only_on_request(request, monkeypatch) -> None:
    """Drawing is by far the slowest part: only the tests that ask for `pictures` draw."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("modeling_hire.analysis.layer_importance.plots_available", lambda what: False)


@pytest.fixture
def pictures() -> None:
    pytest.importorskip("matplotlib")


# ---- collecting ----
def test_collects_every_example_in_order():
    model = FakeHire().eval()
    ids = torch.arange(10).view(5, 2)
    weights = collect_layer_weights(model, [{"input_ids": ids[:3]}, {"input_ids": ids[3:]}])
    assert weights.shape == (5, 3) and weights.dtype == np.float32
    expected = model(ids, output_layer_weights=True).layer_weights.detach().numpy()
    np.testing.assert_allclose(weights, expected, atol=1e-6)


def test_runs_without_gradients_and_restores_each_training_mode():
    model = FakeHire().train()
    model.scorer.eval()  # as a frozen encoder would be
    collect_layer_weights(model, [{"input_ids": torch.ones(2, 2)}])
    assert model.seen == [(False, False)]
    assert model.training and model.dropout.training and not model.scorer.training


def test_restores_the_training_mode_after_an_error():
    model = FakeHire().train()
    with pytest.raises(TypeError):
        collect_layer_weights(model, [{"wrong_name": torch.ones(2, 2)}])
    assert model.training


def test_weights_in_half_precision_and_other_values_in_the_batch():
    model = FakeHire().to(torch.bfloat16)
    model.forward = lambda input_ids, note, output_layer_weights: SimpleNamespace(
        layer_weights=torch.full((2, 3), 1 / 3, dtype=torch.bfloat16)
    )
    weights = collect_layer_weights(model, [{"input_ids": torch.ones(2, 2), "note": ["a", "b"]}])
    assert weights.dtype == np.float32


def test_collect_refuses_a_model_without_layer_weights_and_no_batches():
    model = nn.Linear(1, 1)
    model.forward = lambda input_ids, output_layer_weights: SimpleNamespace(logits=input_ids)
    with pytest.raises(ValueError, match=r"layer_weights=none from Linear.*\(batch, layers\)"):
        collect_layer_weights(model, [{"input_ids": torch.ones(2, 2)}])
    with pytest.raises(ValueError, match="dataloader.*at least one batch"):
        collect_layer_weights(FakeHire(), [])


# ---- one model ----
def test_numbers_of_the_json(tmp_path):
    weights = random_weights(40, 5)
    labels = np.arange(40) % 2
    paths = save_layer_importance(
        weights,
        [1, 2, 3, 4, 5],
        tmp_path / "new" / "folder",
        labels=labels,
        label_names=["unacceptable", "acceptable"],
        extra={"task": "cola", "model": "tiny"},
    )
    report = read(paths["json"])
    assert paths["json"] == tmp_path / "new" / "folder" / "layer_importance.json"
    assert (report["task"], report["model"], report["num_examples"]) == ("cola", "tiny", 40)
    assert report["layers"] == [1, 2, 3, 4, 5] and report["uniform"] is False
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(report[name], getattr(weights, name)(0), atol=1e-6)
    assert report["labels"]["acceptable"]["num_examples"] == 20
    np.testing.assert_allclose(report["labels"]["acceptable"]["mean"], weights[labels == 1].mean(0), atol=1e-6)
    entropy = np.mean([-sum(w * np.log(w) for w in row) / np.log(5) for row in weights])
    assert report["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert [row["index"] for row in report["examples"]] == list(range(40))
    np.testing.assert_allclose([row["weights"] for row in report["examples"]], weights, atol=1e-6)
    assert report["examples"][1]["label"] == "acceptable"


def test_picture_is_a_png_and_the_same_each_time(tmp_path, pictures):
    pictures = []
    for name in ("a", "b"):
        paths = save_layer_importance(random_weights(30, 4), [0, 1, 2, 3], tmp_path / name, labels=[0, 1, 2] * 10)
        pictures.append(paths["png"].read_bytes())
    assert pictures[0].startswith(PNG_SIGNATURE) and pictures[0] == pictures[1]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "layer_importance.json",
        "layer_importance.png",
    ]


def test_at_most_max_examples_spread_over_the_dataset(tmp_path):
    report = read(save_layer_importance(random_weights(1000, 3), [1, 2, 3], tmp_path, max_examples=7)["json"])
    indices = [row["index"] for row in report["examples"]]
    assert len(indices) == 7 and indices[0] == 0 and indices[-1] == 999
    assert max(np.diff(indices)) - min(np.diff(indices)) <= 1
    assert report["num_examples"] == 1000 and report["labels"] == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_dead_scorer_is_flagged(tmp_path, caplog, dtype):
    weights = torch.zeros(20, 5, dtype=dtype).softmax(-1).float().numpy()
    with caplog.at_level(logging.WARNING):
        report = read(save_layer_importance(weights, range(1, 6), tmp_path)["json"])
    assert report["uniform"] is True and report["entropy"] == pytest.approx(1.0, abs=1e-3)
    assert "all weights are equal" in caplog.text


def test_one_live_example_is_not_uniform_and_one_layer_neither(tmp_path):
    weights = np.full((20, 4), 0.25)
    weights[7] = [0.26, 0.24, 0.25, 0.25]
    assert read(save_layer_importance(weights, range(4), tmp_path)["json"])["uniform"] is False
    report = read(save_layer_importance(np.ones((3, 1)), [1], tmp_path)["json"])
    assert report["uniform"] is False and report["entropy"] == 0.0


def test_all_weight_on_one_layer_has_no_entropy(tmp_path):
    report = read(save_layer_importance(np.eye(3), [1, 2, 3], tmp_path)["json"])
    assert report["entropy"] == 0.0 and report["max"] == [1.0, 1.0, 1.0]


def test_scores_are_cut_into_four_groups(tmp_path):
    scores = np.linspace(0.0, 4.9, 41)[::-1]
    report = read(save_layer_importance(random_weights(41, 3), [1, 2, 3], tmp_path, labels=scores)["json"])
    assert sum(group["num_examples"] for group in report["labels"].values()) == 41
    assert len(report["labels"]) == 4 and next(iter(report["labels"])).startswith("1: 0.00 to")
    assert report["examples"][0]["label"].startswith("4: ")


@pytest.mark.parametrize("label_names", [{0: "no", 1: "yes"}, {"0": "no", "1": "yes"}, ["no", "yes"]])
def test_label_names_as_list_or_id2label(tmp_path, label_names):
    paths = save_layer_importance(
        random_weights(3, 2), [1, 2], tmp_path, labels=np.array([1.0, 0.0, -1.0]), label_names=label_names
    )
    # -1 is the label of a test split without answers.
    assert list(read(paths["json"])["labels"]) == ["-1", "no", "yes"]


def test_string_labels(tmp_path):
    paths = save_layer_importance(random_weights(3, 2), [1, 2], tmp_path, labels=["b", "a", "b"])
    assert {name: group["num_examples"] for name, group in read(paths["json"])["labels"].items()} == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": np.ones(3)}, r"weights: must be \(examples, layers\).*\(3,\)"),
        ({"weights": np.ones((0, 3))}, r"neither of them 0, got shape \(0, 3\)"),
        ({"weights": np.full((4, 3), np.nan)}, "weights: every row.*nan"),
        ({"weights": np.full((4, 3), 0.5)}, r"add up to 1.*1\.5"),
        ({"layers": [1, 2]}, r"layers=\[1, 2\].*each of the 3 columns"),
        ({"labels": [0, 1]}, r"labels: must be one label for each of 4 examples, got shape \(2,\)"),
        ({"labels": [0.5, np.nan, 1.0, 2.0]}, "labels: must not hold NaN, got 1"),
        ({"max_examples": 0}, "max_examples=0: must be an integer of at least 1"),
        ({"extra": {"mean": 1}}, r"extra=\['mean'\]"),
    ],
)
def test_wrong_input_names_the_field_and_writes_nothing(tmp_path, change, message):
    arguments = {"weights": random_weights(4, 3), "layers": [1, 2, 3], **change}
    with pytest.raises(ValueError, match=message):
        save_layer_importance(output_dir=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_the_json_is_still_written(tmp_path, pictures, monkeypatch, caplog):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with caplog.at_level(logging.WARNING):
        paths = save_layer_importance(random_weights(4, 3), [1, 2, 3], tmp_path)
        joined = join_layer_importance([tmp_path], tmp_path / "all.png")
    assert list(paths) == ["json"] and list(joined) == ["json"]
    assert "pip install modeling_hire[plots]" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.json", "layer_importance.json"]


@pytest.mark.slow
def test_import_leaves_matplotlib_alone():
    code = (
        "import sys, modeling_hire.analysis.layer_importance as m; "
        "print('matplotlib' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


# ---- several models ----
@pytest.fixture
def checkpoints(tmp_path) -> list[Path]:
    """Two shallow models, one of them dead, and a deeper one; the last has no task in its JSON."""
    folders = [tmp_path / name for name in ("first", "second", "deep")]
    save_layer_importance(random_weights(9, 3), [1, 2, 3], folders[0], extra={"task": "cola"})
    save_layer_importance(np.full((9, 3), 1 / 3), [1, 2, 3], folders[1], extra={"task": "rte"})
    save_layer_importance(random_weights(9, 6), [0, 1, 2, 3, 4, 5], folders[2])
    return folders


def test_join_keeps_the_order_and_the_numbers(tmp_path, checkpoints):
    paths = join_layer_importance(checkpoints, tmp_path / "pictures" / "all.png")
    joined = read(paths["json"])
    assert paths["json"] == tmp_path / "pictures" / "all.json"
    assert joined["layers"] == [0, 1, 2, 3, 4, 5]
    assert [row["task"] for row in joined["rows"]] == ["cola", "rte", "deep"]
    assert [row["uniform"] for row in joined["rows"]] == [False, True, False]
    for row, folder in zip(joined["rows"], checkpoints, strict=True):
        source = read(folder / "layer_importance.json")
        assert all(row[name] == source[name] for name in ("layers", "mean", "std", "entropy", "num_examples"))


def test_the_picture_gets_blank_cells_shares_and_a_star(tmp_path, checkpoints, monkeypatch):
    drawn = {}
    monkeypatch.setattr("modeling_hire.analysis.layer_importance.plots_available", lambda what: True)
    monkeypatch.setattr(
        "modeling_hire.analysis.layer_importance.draw_layers_by_task",
        lambda path, weights, layers, names, **texts: drawn.update(weights=weights, names=names, **texts),
    )
    join_layer_importance(checkpoints, tmp_path / "all.png")
    assert drawn["names"] == ["cola", "rte *", "deep"] and "all weights are equal" in drawn["note"]
    assert np.isnan(drawn["weights"][:2, [0, 4, 5]]).all() and not np.isnan(drawn["weights"][2]).any()
    np.testing.assert_allclose(drawn["weights"][1, 1:4], 1.0, atol=1e-5)
    assert "1 = equal share" in drawn["quantity"]

    join_layer_importance(checkpoints[:2], tmp_path / "all.png")
    np.testing.assert_allclose(drawn["weights"][1], 1 / 3, atol=1e-5)
    assert drawn["quantity"] == "mean weight of the layer"


def test_rows_of_one_task_are_told_apart_by_their_folder(tmp_path):
    for name in ("seed1", "seed2"):
        save_layer_importance(random_weights(4, 2), [1, 2], tmp_path / name, extra={"task": "cola"})
    paths = join_layer_importance([tmp_path / "seed1", tmp_path / "seed2"], tmp_path / "all.png")
    assert [row["task"] for row in read(paths["json"])["rows"]] == ["cola (seed1)", "cola (seed2)"]


@pytest.mark.parametrize("labels", [["a"], list(range(30))])
def test_pictures_of_odd_groups(tmp_path, pictures, labels):
    """One group; groups so narrow that none has room for its name."""
    weights = random_weights(len(labels), 2)
    paths = save_layer_importance(weights, [1, 2], tmp_path, labels=labels, label_names=["long name " * 5] * 30)
    assert paths["png"].read_bytes().startswith(PNG_SIGNATURE)


def test_many_columns(tmp_path, pictures):
    save_layer_importance(random_weights(4, 23), range(1, 24), tmp_path / "large", labels=[0, 1, 0, 1])
    paths = join_layer_importance([tmp_path / "large"], tmp_path / "all.png", tmp_path / "numbers.json")
    assert paths["png"].read_bytes().startswith(PNG_SIGNATURE) and paths["json"].name == "numbers.json"


def test_join_names_the_folder_and_the_command_for_a_missing_file(tmp_path, checkpoints):
    (tmp_path / "empty").mkdir()
    for folder, reason in (
        (tmp_path / "empty", "no layer_importance.json in it"),
        (tmp_path / "no", "no such folder"),
    ):
        with pytest.raises(FileNotFoundError) as error:
            join_layer_importance([checkpoints[0], folder], tmp_path / "all.png")
        assert f"{folder}: {reason}" in str(error.value)
        assert f"python run_glue.py CONFIG.yaml --model hire --output_dir {folder}" in str(error.value)
    assert not (tmp_path / "all.json").exists()


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"layers": [1, 2]}', '{"layers": [1], "mean": ["x"]}', '{"layers": null}']
)
def test_join_refuses_a_file_of_another_kind(tmp_path, content):
    (tmp_path / "layer_importance.json").write_text(content)
    with pytest.raises(ValueError, match="layer_importance.json: must be a file that save_layer_importance wrote"):
        join_layer_importance([tmp_path], tmp_path / "all.png")


def test_join_refuses_sizes_that_do_not_fit(tmp_path):
    report = read(save_layer_importance(random_weights(4, 3), [1, 2, 3], tmp_path)["json"])
    (tmp_path / "layer_importance.json").write_text(json.dumps({**report, "layers": [1, 2]}))
    with pytest.raises(ValueError, match="layers, mean and std must be of one length"):
        join_layer_importance([tmp_path], tmp_path / "all.png")


def test_join_refuses_wrong_names(tmp_path, checkpoints):
    with pytest.raises(ValueError, match=r"directories=\[\]"):
        join_layer_importance([], tmp_path / "all.png")
    with pytest.raises(ValueError, match=r"output_png='all.jpg': must end in .png"):
        join_layer_importance(checkpoints, "all.jpg")
    with pytest.raises(ValueError, match="must not be one of the files to join"):
        join_layer_importance(checkpoints, checkpoints[0] / "layer_importance.png")


def test_command_line(tmp_path, pictures, checkpoints, capsys):
    main([*map(str, checkpoints), "--output", str(tmp_path / "all.png")])
    assert capsys.readouterr().out.split() == [str(tmp_path / "all.json"), str(tmp_path / "all.png")]
    assert (tmp_path / "all.png").read_bytes().startswith(PNG_SIGNATURE)
    with pytest.raises(SystemExit) as exit_info:
        main([str(tmp_path / "nothing"), "--output", str(tmp_path / "more.png")])
    assert exit_info.value.code == 2
    assert "nothing: no such folder" in capsys.readouterr().err


@pytest.mark.slow
def test_module_runs_without_a_warning(tmp_path, checkpoints):
    command = [sys.executable, "-W", "error", "-m", "modeling_hire.analysis.layer_importance", str(checkpoints[0])]
    done = subprocess.run([*command, "--output", str(tmp_path / "all.png")], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""

"""Training on questions: the loss, accumulated batches, padding, and killed runs that go on."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import assert_same
from tiny_runs import NO_DROPOUT, killed_at, same_runs
from tiny_squad import prepared, refused, save_encoder, squad, write_folder, write_squad
from torch.nn import functional

from modeling_hire.training.answering import labelled_span_loss
from modeling_hire.training.running import make_trainer


STEPS = ("--eval_strategy", "steps", "--save_strategy", "steps", "--eval_steps", "2", "--save_steps", "2")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "encoder")
    save_encoder(folder / "still", **NO_DROPOUT)
    write_folder(folder / "data", train=12, evaluation=6)
    return folder


@pytest.fixture(scope="module")
def flags(base: Path) -> tuple[Any, ...]:
    """Three epochs with dropout, two learning rates and a short last batch."""
    named = ("--encoder", base / "encoder", "--task", "squad_v2", "--dataset_dir", base / "data")
    return (*named, "--num_train_epochs", 3, "--new_learning_rate", "5e-3", "--preset", "paper-half")


def logits(batch: int, tokens: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(batch, tokens, generator=generator) for name in ("start_logits", "end_logits")}


LABELS = torch.tensor([[1, 3, 6], [0, 0, 9], [2, 2, 4]])


def test_loss_against_a_naive_loop() -> None:
    outputs = logits(3, 9)
    losses = []
    for row, (start, end, length) in enumerate(LABELS.tolist()):
        for name, place in (("start_logits", start), ("end_logits", end)):
            losses.append(-functional.log_softmax(outputs[name][row, :length], dim=0)[place])
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(labelled_span_loss(outputs, LABELS), expected)
    torch.testing.assert_close(labelled_span_loss(outputs, LABELS, LABELS.numel()), expected)
    torch.testing.assert_close(labelled_span_loss(outputs, LABELS, torch.tensor(2 * LABELS.numel())), expected / 2)


def test_padding_does_not_change_the_loss_or_its_gradient() -> None:
    outputs = {name: value.requires_grad_() for name, value in logits(3, 9).items()}
    before = labelled_span_loss(outputs, LABELS)
    padded = {name: functional.pad(value, (0, 5), value=7.0) for name, value in outputs.items()}
    after = labelled_span_loss(padded, LABELS)
    torch.testing.assert_close(after, before)
    after.backward()
    assert all(value.grad.isfinite().all() for value in outputs.values())
    assert not outputs["start_logits"].grad[0, 6:].any(), "padding gets no gradient"


def test_half_precision_logits() -> None:
    outputs = {name: value.to(torch.bfloat16) for name, value in logits(3, 9).items()}
    loss = labelled_span_loss(outputs, LABELS)
    assert loss.dtype == torch.float32 and loss.isfinite()


def step(base: Path, output: Path, model: str, size: int, accumulated: int, *more: Any) -> Any:
    """The weights after one step of plain gradient descent."""
    named = ("--encoder", base / "still", "--task", "squad_v2", "--dataset_dir", base / "data", "--model", model)
    still = ("--hire_dropout", 0) if model == "hire" else ()
    sizes = ("--per_device_train_batch_size", size, "--gradient_accumulation_steps", accumulated, "--max_steps", 1)
    no = ("--save_strategy", "no", "--eval_strategy", "no", "--load_best_model_at_end", "false", "--warmup_steps", 0)
    plain = ("--optim", "sgd", "--max_grad_norm", 0, "--learning_rate", "0.1", "--lr_scheduler_type", "constant")
    run = prepared(output, *named, *still, *sizes, *no, *plain, *more)
    trainer = make_trainer(run, *run.model(42), run.arguments)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    return before, trainer.model.state_dict()


@pytest.mark.parametrize("model", ["hire", "last"])
def test_accumulated_batches_weigh_as_one(model: str, base: Path, tmp_path: Path) -> None:
    """16 windows at once, or 4 by 4, each batch padded to its own longest window: the same step."""
    before, whole = step(base, tmp_path / "a", model, 16, 1)
    _, parts = step(base, tmp_path / "b", model, 4, 4)
    assert_same(whole, parts, atol=1e-6, rtol=1e-5)
    moved = max((whole[n] - value).abs().max().item() for n, value in before.items() if value.is_floating_point())
    assert moved > 1e-3


@pytest.mark.parametrize("model", ["hire", "last"])
def test_uneven_batches_weigh_as_one(model: str, base: Path, tmp_path: Path) -> None:
    """7 windows at once, or in batches of 4 and 3."""
    more = ("--max_train_samples", 7, "--max_length", 64, "--doc_stride", 30)
    _, whole = step(base, tmp_path / "a", model, 8, 1, *more)
    _, parts = step(base, tmp_path / "b", model, 4, 2, *more)
    assert_same(whole, parts, atol=1e-6, rtol=1e-5)


def test_evaluation_does_not_depend_on_batches(base: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    found = []
    for size in (1, 3, 64):
        run = prepared(tmp_path / "run", *flags, "--per_device_eval_batch_size", size)
        trainer = make_trainer(run, *run.model(42), run.arguments)
        found.append(trainer.predict(run.task.evaluation["validation"]).metrics)
    for name in ("test_exact", "test_f1", "test_best_f1", "test_best_f1_thresh"):
        assert found[0][name] == pytest.approx(found[1][name], abs=1e-4) == pytest.approx(found[2][name], abs=1e-4)


def test_predictions_of_a_tokenizer_that_pads_on_the_left(base: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", *flags)
    model, new = run.model(42)
    predictions = []
    for side in ("right", "left"):
        run.tokenizer.padding_side = side
        trainer = make_trainer(run, model, new, run.arguments)
        output = trainer.predict(run.task.evaluation["validation"]).predictions
        predictions.append(run.task.decode("validation", output))
    assert predictions[0] == predictions[1]


@pytest.fixture(scope="module")
def alone(base: Path, flags: tuple[Any, ...]) -> Path:
    """A run that nobody disturbed."""
    squad(base / "alone", *flags, *STEPS)
    return base / "alone"


def test_a_seed_gives_the_same_run_twice(alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    squad(tmp_path / "again", *flags, *STEPS)
    same_runs(tmp_path / "again", alone)
    for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        assert (tmp_path / "again" / name).read_text() == (alone / name).read_text()


@pytest.mark.parametrize("at", [1, 5, 6])
def test_a_killed_run_goes_on(at: int, alone: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    with killed_at(at):
        squad(tmp_path / "run", *flags, *STEPS)
    assert not (tmp_path / "run" / "seed.json").exists()
    squad(tmp_path / "run", *flags, *STEPS, "--resume", "true")
    same_runs(tmp_path / "run", alone)
    assert (tmp_path / "run" / "null_odds.json").read_text() == (alone / "null_odds.json").read_text()


def test_a_killed_run_of_the_plain_head_goes_on(flags: tuple[Any, ...], tmp_path: Path) -> None:
    plain = (*flags, "--model", "last", *STEPS)
    squad(tmp_path / "alone", *plain)
    with killed_at(5):
        squad(tmp_path / "run", *plain)
    squad(tmp_path / "run", *plain, "--resume", "true")
    same_runs(tmp_path / "run", tmp_path / "alone")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (("--learning_rate", "2e-3"), "learning_rate=0.001 there, 0.002 here"),
        (("--doc_stride", "7"), "doc_stride=6 there, 7 here"),
        (("--null_score_diff_threshold", "1"), "null_score_diff_threshold=0.0 there, 1.0 here"),
    ],
)
def test_other_arguments_are_refused(other: tuple[str, ...], said: str, alone: Path, flags: tuple[Any, ...]) -> None:
    assert said in refused(alone, *flags, *STEPS, *other, "--resume", "true")


def test_nan_logits_stop_the_run(base: Path, flags: tuple[Any, ...], tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", *flags)
    tokens = max(len(ids) for ids in run.task.evaluation["validation"]["input_ids"])
    broken = torch.full((len(run.task.windows["validation"]), tokens), float("nan")).numpy()
    with pytest.raises(ValueError, match="diverged"):
        run.task.compute_metrics(SimpleNamespace(predictions=(broken, broken), label_ids=None))


@pytest.mark.parametrize("model", ["hire", "last"])
def test_something_easy_is_learned(model: str, base: Path, tmp_path: Path) -> None:
    """The answer is the words between two marks; without the marks there is none."""
    numbers = random.Random(0)

    def row(index: int) -> dict[str, Any]:
        words = [f"w{numbers.randrange(10, 90)}" for _ in range(numbers.randint(4, 12))]
        answers = []
        if index % 3:
            place, count = numbers.randrange(len(words) - 2), numbers.randint(1, 2)
            text = " ".join(words[place : place + count])
            words[place : place + count] = ["w1", text, "w2"]
            answers = [{"text": text, "answer_start": len(" ".join(words[: place + 1])) + 1}]
        return {"id": f"q{index}", "question": "w3", "context": " ".join(words), "answers": answers}

    rows = [row(index) for index in range(280)]
    files = ("--train_file", write_squad(tmp_path / "train.json", rows[:240]))
    files += ("--validation_file", write_squad(tmp_path / "dev.json", rows[240:]))
    flags = ("--encoder", base / "still", "--task", "squad_v2", *files, "--model", model)
    flags += ("--num_train_epochs", 6, "--learning_rate", "3e-3", "--per_device_train_batch_size", 8)
    metrics = squad(tmp_path / "run", *flags)["metrics"]["42"]["validation"]
    assert metrics["f1"] > 80, metrics

"""The trainer of sentence embeddings: schemes, accumulation, evaluation, masked words, learning rates."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from test_contrastive_loss import naive
from tiny_contrastive import ALONE, STILL, contrastive, data_flags, trainer_of, write_data
from tiny_models import assert_same, enliven, gradients
from tiny_runs import NO_DROPOUT, save_encoder, weights, write_rows
from torch.nn import functional
from transformers import TrainerCallback

from modeling_hire.training.contrastive_arguments import ContrastiveTrainingArguments
from modeling_hire.training.contrastive_trainer import ContrastiveTrainer, flat


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "still", **NO_DROPOUT)
    save_encoder(folder / "encoder")
    return write_data(folder)


def still(base: Path, scheme: str = "supervised") -> tuple[Any, ...]:
    return ("--encoder", base / "still", *STILL, *data_flags(base, scheme))


def lively(base: Path, scheme: str = "supervised") -> tuple[Any, ...]:
    return ("--encoder", base / "encoder", *data_flags(base, scheme))


def batch_of(trainer: ContrastiveTrainer, rows: range = range(5)) -> dict[str, torch.Tensor]:
    return trainer.data_collator([trainer.train_dataset[row] for row in rows])


def embed(trainer: ContrastiveTrainer, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Every text by itself and without padding, `(rows, texts, width)`."""
    found = []
    for row, marks in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        for ids, mark in zip(row, marks, strict=True):
            found.append(trainer.model(input_ids=ids[mark.bool()][None]).pooler_output[0])
    return torch.stack(found).view(*batch["input_ids"].shape[:2], -1)


# ---- the loss of each scheme ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["pairs.jsonl", "triplets.jsonl", "two.jsonl"])
def test_supervised(file: str, base: Path, tmp_path: Path) -> None:
    flags = (*still(base), "--train_file", base / file, "--temperature", "0.2", "--hard_negative_weight", "0.7")
    trainer = trainer_of(tmp_path / "run", *flags)
    trainer.model.train()
    batch = batch_of(trainer)
    expected = naive(embed(trainer, batch), batch["text_ids"].tolist(), 0.2, 0.7)
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, rel=1e-5)


def naive_two_way(z: torch.Tensor, ids: list[list[int]]) -> float:
    back = [[b, a] for a, b, *_ in ids]
    return (naive(z, ids, weight=1) + naive(z[:, :2].flip(1), back)) / 2


def test_two_ways_and_matryoshka(base: Path, tmp_path: Path) -> None:
    flags = (*still(base), "--two_way", "true", "--matryoshka_dims", 8, 32)
    trainer = trainer_of(tmp_path / "run", *flags)
    batch = batch_of(trainer)
    z, ids = embed(trainer, batch), batch["text_ids"].tolist()
    expected = (naive_two_way(z[..., :8], ids) + naive_two_way(z, ids)) / 2
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_self_supervised(base: Path, tmp_path: Path) -> None:
    """Each text twice in one pass, and the two differ by dropout alone."""
    trainer = trainer_of(tmp_path / "run", *lively(base, "self_supervised"))
    trainer.model.train()
    batch = batch_of(trainer)
    assert batch["input_ids"].shape[:2] == (5, 1)
    torch.manual_seed(3)
    loss = trainer.compute_loss(trainer.model, batch)
    torch.manual_seed(3)
    twice = {name: value[:, 0].repeat_interleave(2, dim=0) for name, value in flat_only(batch).items()}
    z = trainer.model(**twice).pooler_output.view(5, 2, -1)
    assert not z[:, 0].allclose(z[:, 1], atol=1e-3)
    expected = naive(z.detach(), batch["text_ids"].repeat(1, 2).tolist())
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def flat_only(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in batch.items() if value.dim() == 3}


@pytest.mark.parametrize("weight", [1.0, 0.3, 0.0])
def test_hybrid(weight: float, base: Path, tmp_path: Path) -> None:
    """The sum of both losses, each with its own negatives; all texts in one pass."""
    flags = (*lively(base, "hybrid"), "--self_supervised_weight", weight)
    trainer = trainer_of(tmp_path / "run", *flags)
    trainer.model.train()
    batch = batch_of(trainer)
    assert batch["input_ids"].shape[:2] == (5, 4), "anchor, positive, negative, and a single text"
    torch.manual_seed(3)
    loss = trainer.compute_loss(trainer.model, batch)
    torch.manual_seed(3)
    texts = {name: torch.cat([value, value[:, 3:]], dim=1).flatten(0, 1) for name, value in flat_only(batch).items()}
    z = trainer.model(**texts).pooler_output.view(5, 5, -1).detach()
    ids = batch["text_ids"]
    alone = naive(z[:, 3:], ids[:, [3, 3]].tolist())
    expected = naive(z[:, :3], ids[:, :3].tolist(), weight=1) + weight * alone
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_padding_and_order_do_not_matter(base: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *still(base))
    batch = batch_of(trainer)
    expected = trainer.compute_loss(trainer.model, batch).item()
    turned = {name: value[[3, 0, 4, 1, 2]] for name, value in batch.items()}
    padded = {name: functional.pad(value, (0, 7)) if value.dim() == 3 else value for name, value in turned.items()}
    assert trainer.compute_loss(trainer.model, padded).item() == pytest.approx(expected, abs=1e-5)


# ---- steps ----------------------------------------------------------------------------------------------------------


class Watch(TrainerCallback):
    """Keeps the gradients of the first step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if state.global_step == 0:
            self.gradients = gradients(model)


@pytest.mark.parametrize("cache", [(), ("--cache_chunk", 7)])
def test_accumulation_is_a_mean_over_batches(cache: tuple[Any, ...], base: Path, tmp_path: Path) -> None:
    """Two batches of 8 in a step: the mean of their gradients. No batch sees the other's texts."""
    size = ("--per_device_train_batch_size", 8, "--gradient_accumulation_steps", 2, "--max_steps", 1)
    trainer = trainer_of(tmp_path / "run", *still(base), *ALONE, *size, "--max_grad_norm", 0, *cache)
    batches, inner, watch = [], trainer.compute_loss, Watch()

    def keeping(model: Any, inputs: dict[str, torch.Tensor], **kwargs: Any) -> torch.Tensor:
        batches.append(inputs)
        return inner(model, inputs, **kwargs)

    trainer.compute_loss = keeping
    trainer.add_callback(watch)
    start = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    assert [len(batch["input_ids"]) for batch in batches] == [8, 8]

    model = trainer.model
    model.load_state_dict(start)
    model.zero_grad()
    parts = []
    for batch in batches:
        z = model(**flat(batch)).pooler_output.view(8, 3, -1)
        ids = batch["text_ids"]
        logits = functional.cosine_similarity(z[:, 0, None], z[:, 1:].transpose(0, 1).flatten(0, 1)[None], dim=-1)
        logits = logits / 0.05 + torch.cat([torch.zeros(8, 8), torch.eye(8)], dim=1)
        assert ids.unique().numel() == ids.numel(), "no text occurs twice"
        parts.append(functional.cross_entropy(logits, torch.arange(8)))
    ((parts[0] + parts[1]) / 2).backward()
    largest = max(value.abs().max().item() for value in gradients(model).values())
    assert_same(watch.gradients, gradients(model), atol=2e-6 * max(1, largest), rtol=1e-5)
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(sum(parts).item() / 2, rel=1e-5)


def test_incomplete_batches_are_left_out_of_training_alone(base: Path, tmp_path: Path) -> None:
    """24 rows in batches of 7 are three steps; 11 pairs in batches of 4 are all scored."""
    flags = (*still(base), "--per_device_train_batch_size", 7, "--per_device_eval_batch_size", 4)
    trainer = trainer_of(tmp_path / "run", *flags)
    assert len(trainer.get_train_dataloader()) == 3
    assert len(trainer.predict(trainer.eval_dataset).predictions) == 11
    assert trainer.evaluate()["eval_spearman"] == pytest.approx(
        trainer.predict(trainer.eval_dataset).metrics["test_spearman"], abs=1e-9
    )
    assert trainer.args.dataloader_drop_last is True
    trainer.args.dataloader_drop_last = False
    assert len(trainer.get_train_dataloader()) == 4


def test_similarities_are_those_of_single_texts(base: Path, tmp_path: Path) -> None:
    found = []
    for size in (1, 4, 64):
        trainer = trainer_of(tmp_path / "run", *lively(base), "--per_device_eval_batch_size", size)
        enliven(trainer.model, seed=2)  # what is new starts at random
        output = trainer.predict(trainer.eval_dataset)
        assert output.predictions.shape == (11,) and output.label_ids.shape == (11,)
        found.append(output.predictions)
    trainer.model.eval()
    batch = trainer.data_collator([trainer.eval_dataset[row] for row in range(11)])
    z = embed(trainer, batch).detach()
    expected = functional.cosine_similarity(z[:, 0], z[:, 1], dim=-1)
    for predictions in found:
        torch.testing.assert_close(torch.from_numpy(predictions), expected, atol=1e-5, rtol=0)


def test_from_python(base: Path, tmp_path: Path) -> None:
    """Without a script around it, the trainer evaluates and keeps the best checkpoint too."""
    other = trainer_of(tmp_path / "unused", *lively(base))
    arguments = ContrastiveTrainingArguments(
        output_dir=str(tmp_path / "out"), use_cpu=True, per_device_train_batch_size=8, disable_tqdm=True
    )
    trainer = ContrastiveTrainer(
        other.model,
        arguments,
        train_dataset=other.train_dataset,
        eval_dataset=other.eval_dataset,
        data_collator=other.data_collator,
        processing_class=other.processing_class,
    )
    trainer.train()
    scores = [entry["eval_spearman"] for entry in trainer.state.log_history if "eval_spearman" in entry]
    assert len(scores) == 3 and trainer.state.best_metric == max(scores)
    assert trainer.evaluate()["eval_spearman"] == pytest.approx(max(scores), abs=1e-6)


def test_two_learning_rates(base: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *lively(base), "--new_learning_rate", "0.01", "--mlm_weight", "0.1")
    optimizer = trainer.create_optimizer()
    new = {id(p) for name, p in trainer.model.named_parameters() if not name.startswith("encoder.")}
    for group in optimizer.param_groups:
        assert {id(p) in new for p in group["params"]} == {group["lr"] == 0.01}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(trainer.model.parameters()))


def test_gradient_checkpointing(base: Path, tmp_path: Path) -> None:
    plain = trainer_of(tmp_path / "a", *lively(base), *ALONE, "--max_steps", 2)
    plain.train()
    saving = trainer_of(tmp_path / "b", *lively(base), *ALONE, "--max_steps", 2, "--activation_checkpointing", "true")
    saving.train()
    assert_same(saving.model.state_dict(), plain.model.state_dict(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("scheme", ["supervised", "hybrid"])
def test_something_easy_is_learned(scheme: str, base: Path, tmp_path: Path) -> None:
    """Four topics of three words; which words belong together only the training rows tell."""
    words = [[f"w{10 * topic + i}" for i in range(3)] for topic in range(4)]
    numbers, rows, pairs = random.Random(0), [], []
    for index in range(96):
        (a, b), c = numbers.sample(words[index % 4], 2), numbers.choice(words[(index + 1 + index // 4 % 3) % 4])
        rows.append({"anchor": f"{a} {a}", "positive": f"{b} {b}", "negative": f"{c} {c}"})
        pairs.append({"sentence1": a, "sentence2": b if index % 8 < 4 else c, "score": int(index % 8 < 4)})
    train, dev = write_rows(tmp_path / "train.jsonl", rows), write_rows(tmp_path / "dev.jsonl", pairs)
    flags = ("--scheme", scheme, "--train_file", train, "--validation_file", dev, "--encoder", base / "encoder")
    before = trainer_of(tmp_path / "a", *flags).evaluate()["eval_spearman"]
    more = ("--num_train_epochs", 8, "--learning_rate", "3e-3", "--warmup_steps", 10, "--pooler", "mean")
    trainer = trainer_of(tmp_path / "b", *flags, *ALONE, *more)
    trainer.train()
    after = trainer.evaluate()["eval_spearman"]
    assert before < 0.5 and after > 0.75, (before, after)


def test_dropout_alone_teaches_to_tell_texts_apart(base: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *lively(base, "self_supervised"), *ALONE, "--num_train_epochs", 6)
    batch = batch_of(trainer, range(8))
    first = trainer.compute_loss(trainer.model.train(), batch).item()
    trainer.train()
    last = trainer.compute_loss(trainer.model.train(), batch).item()
    assert last < 0.85 * first, (first, last)


# ---- masked words ---------------------------------------------------------------------------------------------------


def test_masked_words_by_hand(base: Path, tmp_path: Path) -> None:
    """The words of the first two texts' second tokens are masked: their loss, word by word."""
    trainer = trainer_of(tmp_path / "run", *still(base), "--mlm_weight", "0.5")
    enliven(trainer.model, seed=3)
    batch = batch_of(trainer)
    texts = flat(batch)
    places = [(0, 1), (1, 1), (4, 2)]

    def mask(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.full_like(ids, -100)
        for row, place in places:
            labels[row, place], ids[row, place] = ids[row, place], 4
        return ids, labels

    trainer.masked_words.masker.torch_mask_tokens = mask
    total = 0.0
    head, matrix = trainer.model.word_head, trainer.model.get_input_embeddings().weight
    for row, place in places:
        kept = texts["attention_mask"][row].bool()
        ids = texts["input_ids"][row][kept].clone()
        word, ids[place] = ids[place].item(), 4
        state = trainer.model(input_ids=ids[None]).last_hidden_state[0, place]
        hidden = functional.gelu(head.dense.weight @ state + head.dense.bias)
        hidden = (hidden - hidden.mean()) / (hidden.var(unbiased=False) + head.norm.eps).sqrt()
        logits = matrix @ (hidden * head.norm.weight + head.norm.bias) + head.bias
        total -= logits.log_softmax(0)[word].item()
    expected = naive(embed(trainer, batch), batch["text_ids"].tolist(), weight=1) + 0.5 * total / len(places)
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(batch["input_ids"], batch_of(trainer)["input_ids"]), "the texts themselves are whole"


def test_no_masked_word_at_all(base: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *still(base), "--mlm_weight", "0.5")
    trainer.masked_words.masker.torch_mask_tokens = lambda ids: (ids, torch.full_like(ids, -100))
    batch = batch_of(trainer)
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    assert loss.item() == pytest.approx(naive(embed(trainer, batch), batch["text_ids"].tolist(), weight=1), rel=1e-5)
    missing = [name for name, parameter in trainer.model.named_parameters() if parameter.grad is None]
    assert not missing, "DistributedDataParallel waits for every gradient"


def test_special_tokens_and_padding_are_not_masked(base: Path, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run", *still(base), "--mlm_weight", "1", "--mlm_probability", "0.5")
    ids = flat(batch_of(trainer, range(24)))["input_ids"]
    masked, labels = trainer.masked_words.masker.torch_mask_tokens(ids.clone())
    chosen = labels != -100
    assert not (chosen & (ids < 5)).any() and torch.equal(masked[~chosen], ids[~chosen])
    assert 0.4 < chosen.sum() / (ids >= 5).sum() < 0.6


def test_the_word_head_stays_behind(base: Path, tmp_path: Path) -> None:
    """It is in the checkpoints, and learns; it is not in the model that is left."""
    flags = (*lively(base), "--mlm_weight", "0.15", "--keep_checkpoints", "true", "--save_total_limit", 5)
    contrastive(tmp_path / "run", *flags)
    head = {f"word_head.{name}" for name in ("dense.weight", "dense.bias", "norm.weight", "norm.bias", "bias")}
    first, second = (weights(tmp_path / "run" / f"checkpoint-{step}") for step in (3, 6))
    assert head <= first.keys()
    assert all(not torch.equal(first[name], second[name]) for name in head)
    left = weights(tmp_path / "run")
    assert left.keys() == first.keys() - head


def test_masked_words_of_narrow_embeddings(base: Path, tmp_path: Path) -> None:
    """ALBERT's word embeddings are narrower than its hidden states."""
    save_encoder(tmp_path / "albert", "albert")
    flags = (*lively(base), *ALONE, "--encoder", tmp_path / "albert", "--mlm_weight", "1", "--max_steps", 1)
    trainer = trainer_of(tmp_path / "run", *flags)
    assert trainer.model.word_head.dense.weight.shape == (16, 32)
    trainer.train()


def test_another_trainer_can_go_on(base: Path, tmp_path: Path) -> None:
    """Without the word head a model can go on in another trainer."""
    trainer = trainer_of(tmp_path / "run", *lively(base), *ALONE, "--mlm_weight", "1", "--max_steps", 1)
    trainer.train()
    assert not hasattr(trainer.model, "word_head")
    again = ContrastiveTrainer(
        trainer.model, trainer.args, train_dataset=trainer.train_dataset, processing_class=trainer.processing_class
    )
    assert hasattr(again.model, "word_head")

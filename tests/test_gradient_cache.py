"""Gradient caching gives the gradient of one pass over the whole batch, chunk by chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_contrastive import ALONE, STILL, data_flags, trainer_of, write_data
from tiny_encoders import tiny_encoder_config
from tiny_models import assert_same, enliven, gradients, tiny_batch
from tiny_runs import NO_DROPOUT, save_encoder

from modeling_hire import LayerAttnPoolConfig, LayerAttnPoolEncoder
from modeling_hire.configuration_layer_attn_pool import POOLERS
from modeling_hire.training.contrastive_loss import ContrastiveLoss
from modeling_hire.training.contrastive_trainer import embedder
from modeling_hire.training.gradient_cache import Inputs, embed_cached


LENGTHS = (9, 4, 7, 5, 12, 3, 8, 6, 5, 10, 4, 9)  # four rows of three texts


def sentence_encoder(encoder: dict[str, Any] | None = None, **fields: Any) -> LayerAttnPoolEncoder:
    """A model in training mode, not moved from where dropout and slopes are drawn unless the fields say so."""
    config = LayerAttnPoolConfig(encoder_config=tiny_encoder_config("bert", **(encoder or {})), **fields)
    return enliven(LayerAttnPoolEncoder(config)).train()


def loss_of(embeddings: torch.Tensor) -> torch.Tensor:
    return ContrastiveLoss()(embeddings.view(4, 3, -1), torch.arange(12).view(4, 3))


def plain(model: LayerAttnPoolEncoder, batch: Inputs) -> torch.Tensor:
    """The loss of one pass, and its gradients in the model."""
    model.zero_grad()
    loss = loss_of(model(**batch).pooler_output)
    loss.backward()
    return loss.detach()


def cached(model: LayerAttnPoolEncoder, batch: Inputs, chunk: int) -> torch.Tensor:
    model.zero_grad()
    loss = loss_of(embed_cached(model, embedder(model), batch, chunk))
    loss.backward()
    return loss.detach()


def still(pooler: str, **fields: Any) -> LayerAttnPoolEncoder:
    """A model that draws no random numbers."""
    return sentence_encoder(NO_DROPOUT, pooler=pooler, **({"activation": "leaky"} if pooler == "layer_attn" else {}))


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("chunk", [1, 5, 12, 64])
def test_without_dropout(pooler: str, chunk: int) -> None:
    model, batch = still(pooler), tiny_batch(LENGTHS)
    expected = plain(model, batch), gradients(model)
    found = cached(model, batch, chunk), gradients(model)
    torch.testing.assert_close(found[0], expected[0], atol=1e-6, rtol=1e-6)
    largest = max(value.abs().max().item() for value in expected[1].values())
    assert_same(found[1], expected[1], atol=1e-6 * max(1, largest), rtol=1e-6)
    assert largest > 1e-2


def test_in_double_precision() -> None:
    """What is left of a difference is rounding."""
    model, batch = still("layer_attn").double(), tiny_batch(LENGTHS)
    plain(model, batch)
    expected = gradients(model)
    cached(model, batch, 5)
    assert_same(gradients(model), expected, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize("fields", [{}, {"rrelu_resample": True}, {"pooler": "mean"}, {"layer_plan": [0, 0, 1, 2, 2]}])
@pytest.mark.parametrize("is_first", [True, False])
def test_with_dropout(fields: dict[str, Any], is_first: bool) -> None:
    """As the same chunks with a graph from the start, drawing the same random numbers; and these go on as there.

    The first pass of a model without a graph is special: the model finds out then whether it can be read layer by
    layer without holding the layers.
    """
    model, batch = sentence_encoder(**fields), tiny_batch(LENGTHS)
    if not is_first:
        with torch.no_grad():
            model(**batch)
    torch.manual_seed(5)
    loss, after = cached(model, batch, 5), torch.rand(3)
    found = gradients(model)

    torch.manual_seed(5)
    model.zero_grad()
    pieces = [{name: value[i : i + 5] for name, value in batch.items()} for i in (0, 5, 10)]
    expected = loss_of(torch.cat([model(**piece).pooler_output for piece in pieces]))
    assert torch.equal(after, torch.rand(3))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), atol=1e-6, rtol=1e-6)
    assert_same(found, gradients(model), atol=1e-6, rtol=1e-5)

    torch.manual_seed(6)
    assert abs(cached(model, batch, 5) - loss) > 1e-3, "random numbers matter"


def test_no_pass_holds_more_than_a_chunk() -> None:
    model, batch, seen = still("layer_attn"), tiny_batch(LENGTHS), []

    def embed(inputs: Inputs) -> torch.Tensor:
        seen.append((len(inputs["input_ids"]), torch.is_grad_enabled()))
        return model(**inputs).pooler_output

    loss_of(embed_cached(model, embed, batch, 5)).backward()
    assert seen == [(5, False), (5, False), (2, False), (5, True), (5, True), (2, True)]


def test_gradients_add_up() -> None:
    """Two losses one after the other, as in gradient accumulation; and a factor on the loss."""
    model, first, second = still("layer_attn"), tiny_batch(LENGTHS), tiny_batch(LENGTHS, seed=1)
    model.zero_grad()
    for batch in (first, second):
        (loss_of(model(**batch).pooler_output) / 2).backward()
    expected = gradients(model)
    model.zero_grad()
    for batch in (first, second):
        (loss_of(embed_cached(model, embedder(model), batch, 5)) / 2).backward()
    assert_same(gradients(model), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside: bool) -> None:
    """Both passes run in bfloat16, wherever the gradient is asked for; no weight loses its gradient."""
    model, batch, kinds = still("layer_attn"), tiny_batch(LENGTHS), []
    model.pooler.dense.register_forward_hook(lambda module, args, output: kinds.append(output.dtype))

    def gradients_of(embed: Any) -> dict[str, torch.Tensor]:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(embed())
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return gradients(model)

    expected = gradients_of(lambda: model(**batch).pooler_output)
    found = gradients_of(lambda: embed_cached(model, embedder(model), batch, 5))
    assert set(kinds) == {torch.bfloat16}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).norm() <= 0.02 * value.norm() + 1e-3, name


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_encoder(folder / "still", **NO_DROPOUT)
    save_encoder(folder / "encoder")
    write_data(folder)
    return folder


def first_step(base: Path, output: Path, *flags: Any) -> dict[str, torch.Tensor]:
    """The weights after a step of plain gradient descent."""
    sgd = ("--optim", "sgd", "--max_grad_norm", 0, "--learning_rate", "0.1", "--lr_scheduler_type", "constant")
    trainer = trainer_of(output, *data_flags(base, "supervised"), *ALONE, *sgd, "--max_steps", 1, *flags)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    after = trainer.model.state_dict()
    assert max((after[name] - before[name]).abs().max() for name in after) > 1e-3
    return after


@pytest.mark.parametrize("more", [(), ("--bf16", "true"), ("--gradient_accumulation_steps", 3)])
def test_in_the_trainer(more: tuple[Any, ...], base: Path, tmp_path: Path) -> None:
    flags = ("--encoder", base / "still", *STILL, *more)
    expected = first_step(base, tmp_path / "a", *flags)
    found = first_step(base, tmp_path / "b", *flags, "--cache_chunk", 5)
    assert_same(found, expected, atol=1e-3 if more[:1] == ("--bf16",) else 1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        ("self_supervised", ()),
        ("hybrid", ()),
        ("supervised", ("--peft", "lora")),
        ("supervised", ("--activation_checkpointing", "true")),
    ],
)
def test_random_numbers_in_the_trainer(scheme: str, more: tuple[Any, ...], base: Path, tmp_path: Path) -> None:
    """With one chunk as large as the batch the same random numbers are drawn as without."""
    flags = ("--encoder", base / "encoder", *data_flags(base, scheme), *more)
    expected = first_step(base, tmp_path / "a", *flags)
    found = first_step(base, tmp_path / "b", *flags, "--cache_chunk", 64)
    assert_same(found, expected, atol=1e-6, rtol=1e-6)

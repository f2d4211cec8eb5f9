"""`encode` with the tokenizer of the checkpoint or another: what fits, what is refused, how much of a text is read."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import tiny_tokenizer
from tiny_sentence_encoders import close, embed_alone, saved, sentence_model, texts_of_many_lengths, tokenizer_with
from transformers import PreTrainedTokenizerFast

from modeling_hire import LayerAttnPoolEncoder


TEXTS = texts_of_many_lengths()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LayerAttnPoolEncoder:
    return saved(tmp_path_factory.mktemp("model"), prompts={"query": "w80 w81 ", "passage": "w82 "})


@pytest.fixture(scope="module")
def expected(model: LayerAttnPoolEncoder, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Every text by itself, without padding."""
    return embed_alone(model, tokenizer, TEXTS).numpy()


class TestTokenizer:
    def test_is_the_checkpoints_own(self, tmp_path: Path) -> None:
        tokenizer = tokenizer_with("[CLS] $A [SEP]", model_max_length=9)
        model = saved(tmp_path, tokenizer)
        assert model.tokenizer is None, "not before it is needed"
        assert close(model.encode(TEXTS), model.encode(TEXTS, tokenizer=tokenizer))
        assert model.tokenizer.model_max_length == 9
        shutil.rmtree(tmp_path)
        assert close(model.encode(TEXTS), model.encode(TEXTS, tokenizer=tokenizer)), "read once"

    def test_that_is_given_is_used_this_once(self, model: LayerAttnPoolEncoder, expected: np.ndarray) -> None:
        reversed_words = tokenizer_with("[CLS] [CLS] $A [SEP]")
        assert not close(model.encode(TEXTS, tokenizer=reversed_words), expected)
        assert close(model.encode(TEXTS), expected)

    @pytest.mark.parametrize("files", [[], ["tokenizer_config.json"]])
    def test_that_is_missing_is_an_error(self, files: list[str], tmp_path: Path) -> None:
        sentence_model().save_pretrained(tmp_path)
        for name in files:
            (tmp_path / name).write_text("{}")
        model = LayerAttnPoolEncoder.from_pretrained(tmp_path)
        with pytest.raises(ValueError, match=f"tokenizer=None: .*{re.escape(str(tmp_path))}.*give one"):
            model.encode(TEXTS)

    def test_of_a_model_without_a_checkpoint_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="tokenizer=None: this model was not loaded from a checkpoint; give one"):
            sentence_model().encode(TEXTS)

    def test_with_more_ids_than_the_encoder_is_an_error(self) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.add_tokens(["one", "more"])
        with pytest.raises(ValueError, match="tokenizer: it has 101 ids and the encoder 99"):
            sentence_model().encode(TEXTS, tokenizer=tokenizer)

    def test_without_a_padding_token_is_an_error(self) -> None:
        tokenizer = tokenizer_with(pad_token=None)
        with pytest.raises(ValueError, match="tokenizer: it has no padding token"):
            sentence_model().encode(TEXTS, tokenizer=tokenizer)

    @pytest.mark.parametrize("pooler", ["layer_attn", "cls", "cls_before_pooler", "cls_and_mean"])
    @pytest.mark.parametrize(
        ("template", "position", "advice"),
        [
            (None, "first", "allowed is a pooler that reads none, such as pooler='mean'"),
            (None, "last", "allowed is a pooler that reads none"),
            ("$A [SEP]", "first", "allowed is cls_position='last', where it has one, or a pooler"),
            ("[CLS] $A", "last", "allowed is cls_position='first'"),
        ],
    )
    def test_without_a_token_that_stands_for_the_text_is_an_error(
        self, template: str | None, position: str, advice: str, pooler: str
    ) -> None:
        model = sentence_model(pooler=pooler, cls_position=position)
        with pytest.raises(ValueError, match=re.escape(f"cls_position={position!r}: this tokenizer")) as error:
            model.encode(TEXTS, tokenizer=tokenizer_with(template))
        assert advice in str(error.value)

    @pytest.mark.parametrize("pooler", ["mean", "mean_first_last", "mean_top2", "static_mix"])
    def test_without_special_tokens_serves_poolers_that_need_none(self, pooler: str) -> None:
        model, tokenizer = sentence_model(pooler=pooler), tokenizer_with(None)
        expected = embed_alone(model, tokenizer, TEXTS).numpy()
        assert close(model.encode(TEXTS, tokenizer=tokenizer, batch_size=4), expected)
        # Of an empty text it makes no token at all.
        actual = model.encode(["", "w1", ""], tokenizer=tokenizer)
        assert np.isfinite(actual).all() and close(actual[1], embed_alone(model, tokenizer, ["w1"])[0].numpy())

    @pytest.mark.parametrize("encoder_type", ["bert", "roberta", "modernbert", "xlnet"])
    @pytest.mark.parametrize("position", ["first", "last"])
    def test_that_pads_on_the_left_changes_nothing(self, encoder_type: str, position: str) -> None:
        model = sentence_model(encoder_type, cls_position=position)
        tokenizer = tokenizer_with("[CLS] $A [SEP]", padding_side="left")
        expected = embed_alone(model, tokenizer, TEXTS).numpy()
        assert close(model.encode(TEXTS, tokenizer=tokenizer, batch_size=4), expected)
        assert tokenizer.padding_side == "left", "it is not ours to change"

    def test_with_the_token_for_the_text_at_the_end(self) -> None:
        # As XLNet's.
        model = sentence_model("xlnet", pooler="cls_before_pooler", cls_position="last")
        tokenizer = tokenizer_with("$A [SEP] [CLS]", padding_side="left")
        ids = tokenizer(TEXTS[0], return_tensors="pt")
        with torch.no_grad():
            last = model.encoder(**ids).last_hidden_state[0, -1]
        assert close(model.encode(TEXTS, tokenizer=tokenizer)[0], last.numpy())


class TestLimits:
    @pytest.mark.parametrize(
        ("encoder_type", "fields", "limit", "read"),
        [
            ("bert", {}, 10**30, 64),  # as many as there are positions
            ("roberta", {}, 10**30, 64),  # 66 of them, of which the first two are never used
            ("bert", {"max_seq_length": 7}, 10**30, 7),
            ("bert", {"max_seq_length": 500}, 10**30, 64),
            ("bert", {"max_seq_length": 20}, 12, 12),
            ("bert", {}, 12, 12),
            # Relative positions have no limit: the length that the encoder was made for, or a usual one.
            ("deberta-v2", {}, 10**30, 64),
            ("deberta-v2", {"max_seq_length": 500}, 10**30, 302),
            ("deberta-v2", {"max_seq_length": 500}, 200, 200),
            ("xlnet", {}, 10**30, 512),
            ("xlnet", {}, 200, 200),
            ("xlnet", {"max_seq_length": 100}, 10**30, 100),
        ],
    )
    def test_of_a_text(self, encoder_type: str, fields: dict[str, Any], limit: int, read: int) -> None:
        model, tokenizer = sentence_model(encoder_type, **fields), tokenizer_with(model_max_length=limit)
        seen = []
        model.register_forward_pre_hook(
            lambda m, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
        )
        assert np.isfinite(model.encode(["w1 " * (300 if read != 512 else 600), "w2"], tokenizer=tokenizer)).all()
        assert seen == [(2, read)]

"""Members of ensembles: when their weights are in memory, and which ones are refused."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_encoders import tiny_encoder_config
from tiny_ensembles import classifiers, member, named, readers, save
from tiny_models import tiny_batch, tiny_model, tiny_tokenizer
from tiny_spans import TEXTS, wordpiece
from torch import nn
from transformers import AutoModel, AutoModelForSequenceClassification

from benchmarks.memory import PeakMemory
from modeling_hire.evaluation.ensemble_members import Member
from modeling_hire.evaluation.ensembles import EnsembleForQuestionAnswering, EnsembleForSequenceClassification


def live_bytes() -> int:
    """Bytes of all tensors that are alive, each storage once."""
    # By type: asking things themselves for their class wakes deprecated ones. A compiler's stand-ins, which an earlier
    # test may have left, are tensors of other types and hold no memory.
    kinds = (torch.Tensor, nn.Parameter)
    tensors = [thing for thing in gc.get_objects() if type(thing) in kinds and not thing.is_meta]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def size(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in [*model.parameters(), *model.buffers()])


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes are alive each time that a member runs."""
    seen: list[int] = []
    run = Member.run

    def watching(self: Member, function: Callable[[Any], Any], *place: Any) -> Any:
        def look(model: nn.Module) -> Any:
            result = function(model)
            seen.append(live_bytes())
            return result

        return run(self, look, *place)

    monkeypatch.setattr(Member, "run", watching)
    return seen


def test_one_checkpoint_at_a_time(tmp_path: Path, watched: list[int]) -> None:
    """Nothing is left of a member's weights when the next one runs, without help from the garbage collector."""
    tokenizer = tiny_tokenizer()
    kinds = ("bert", "hire", "distilbert", "bert")
    pairs = [
        member(kind, tokenizer, seed, layers=2 + 4 * (seed == 1), **named(("no", "yes")))
        for seed, kind in enumerate(kinds)
    ]
    sizes = [size(model) for model, _ in pairs]
    assert max(sizes) > 2 * min(sizes)
    folders = save(pairs, tmp_path)
    pairs.clear()
    gc.collect()
    gc.disable()
    try:
        before = live_bytes()
        ensemble = EnsembleForSequenceClassification(folders)
        assert live_bytes() - before < 100, "nothing is loaded before it is needed"
        with PeakMemory() as memory:
            output = ensemble(**tiny_batch())
        assert live_bytes() - before < 1000 and len(watched) == len(sizes)
        for alive, own in zip(watched, sizes, strict=True):
            assert own <= alive - before < 1.05 * own + 5000
        # What is computed is small beside the weights, and does not add up over members.
        assert memory.peak_bytes < max(sizes) and memory.live_bytes < 1000
        watched.clear()
        ensemble.predict([f"w{i} w3" for i in range(8)])
        for alive, own in zip(watched, sizes, strict=True):
            assert own <= alive - before < 1.05 * own + 5000
        assert output.member_logits.shape == (4, 3, 2)
    finally:
        gc.enable()


def test_questions_too(tmp_path: Path, watched: list[int]) -> None:
    pairs = readers(False)
    sizes = [size(model) for model, _ in pairs]
    folders = save(pairs, tmp_path)
    pairs.clear()
    gc.collect()
    before = live_bytes()
    answers = EnsembleForQuestionAnswering(folders).predict(["where?", "who?"], TEXTS[0])
    assert all(answer.text for answer in answers)
    for alive, own in zip(watched, sizes, strict=True):
        assert own <= alive - before < 1.05 * own + 5000


def test_precision_and_place_of_checkpoints(tmp_path: Path) -> None:
    folders = save(classifiers()[:1], tmp_path)
    seen = []

    def look(model: Any) -> None:
        seen.append((model.dtype, model.device.type, model.training))

    ensemble = EnsembleForSequenceClassification(folders, dtype=torch.bfloat16)
    ensemble.run_member(ensemble.members[0], look)
    ensemble.to("cpu").double().run_member(ensemble.members[0], look)
    assert seen == [(torch.bfloat16, "cpu", False), (torch.float64, "cpu", False)]
    assert not ensemble.state_dict(), "checkpoints are no part of its weights"


def test_given_models_are_submodules() -> None:
    model = tiny_model("fast")
    ensemble = EnsembleForSequenceClassification([model])
    assert set(ensemble.parameters()) == set(model.parameters())


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [EnsembleForSequenceClassification, EnsembleForQuestionAnswering])
def test_no_members(kind: type) -> None:
    with pytest.raises(ValueError, match=r"members=\[\]: an ensemble has no members"):
        kind([])
    for wrong in ("one/name", Path("folder"), tiny_model("fast"), None, {"a": 1}):
        with pytest.raises(ValueError, match="allowed is a list of models and checkpoints"):
            kind(wrong)
    with pytest.raises(ValueError, match=r"members\[0\]=3"):
        kind([3])
    with pytest.raises(ValueError, match="no configuration"):
        kind([nn.Linear(2, 2)])


def test_arguments_one_a_member() -> None:
    model = tiny_model("fast")
    with pytest.raises(ValueError, match="tokenizers: 1 for 2 members"):
        EnsembleForSequenceClassification([model, model], [tiny_tokenizer()])
    with pytest.raises(ValueError, match="revision: 3 for 1 members"):
        EnsembleForSequenceClassification([model], revision=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"revision='a': members\[0\] .* is a model"):
        EnsembleForSequenceClassification([model], revision="a")
    with pytest.raises(ValueError, match="tokenizers: holds 3"):
        EnsembleForSequenceClassification([model], [3])
    with pytest.raises(ValueError, match=r"tokenizers: members\[0\] .*is not known"):
        EnsembleForSequenceClassification([model]).predict("w1")


def test_revision_reaches_every_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configuration, weights and tokenizer of a member come from the same commit."""
    (folder,) = save(classifiers()[:1], tmp_path)
    from modeling_hire.evaluation import ensemble_members

    seen = []
    for owner, name in (
        (ensemble_members.AutoConfig, "from_pretrained"),
        (ensemble_members.AutoTokenizer, "from_pretrained"),
        (AutoModelForSequenceClassification, "from_pretrained"),
        (ensemble_members, "cached_file"),
    ):
        original = getattr(owner, name)

        def noting(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            seen.append(kwargs.get("revision"))
            return _original(*args, **kwargs)

        monkeypatch.setattr(owner, name, noting)
    EnsembleForSequenceClassification([folder], revision="0123abc").predict("x")
    assert len(seen) >= 4 and set(seen) == {"0123abc"}


def test_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    model, _ = member("bert", tokenizer, 1)
    model.save_pretrained(tmp_path / "good")
    tokenizer.save_pretrained(tmp_path / "good")
    EnsembleForSequenceClassification([tmp_path / "good"]).predict("x")

    def refused(name: str, said: str, kind: type = EnsembleForSequenceClassification, call: bool = False) -> None:
        with pytest.raises(ValueError, match=rf"members\[1\] \('{tmp_path / name}'\): .*{said}"):
            ensemble = kind([tmp_path / "good", tmp_path / name])
            assert call, "should be known before any work starts"
            ensemble.predict("x")

    refused("nowhere", "no model can be read there")
    AutoModel.from_config(tiny_encoder_config("bert")).save_pretrained(tmp_path / "bare")
    refused("bare", "saved by BertModel; allowed is a fine-tuned checkpoint")
    with pytest.raises(ValueError, match="saved by BertForSequenceClassification"):
        EnsembleForQuestionAnswering([tmp_path / "good"])

    model.save_pretrained(tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    refused("pickled", "no weights in safetensors")

    model.save_pretrained(tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused("cut", "corrupt or cut short")

    model.save_pretrained(tmp_path / "mute")
    refused("mute", "no tokenizer", call=True)

    encoder = tiny_encoder_config("bert", vocab_size=len(tokenizer))
    AutoModel.from_config(encoder).save_pretrained(tmp_path / "lacking")
    config = json.loads((tmp_path / "lacking" / "config.json").read_text())
    (tmp_path / "lacking" / "config.json").write_text(json.dumps({**config, "architectures": None}))
    tokenizer.save_pretrained(tmp_path / "lacking")
    refused("lacking", r"lacks \d+ weights, such as 'classifier", call=True)


def test_code_of_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "strange", "auto_map": {"AutoConfig": "configuration_strange.Strange"}})
    )
    (tmp_path / "configuration_strange.py").write_text("raise SystemExit('it was run')\n")
    with pytest.raises(ValueError, match="no model can be read there"):
        EnsembleForSequenceClassification([tmp_path])

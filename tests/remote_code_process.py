"""Loads every folder of saved models in a process that cannot import this library, and writes down what it found.

Run by `test_remote_code.py` as `python -I remote_code_process.py FOLDER`. Writes `FOLDER/findings.json`: for each
folder and entry of its `auto_map`, a list of complaints.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import traceback
from pathlib import Path


class Blocked:
    """An import finder that knows of no `modeling_hire`."""

    @staticmethod
    def find_spec(name: str, path=None, target=None) -> None:
        if name.partition(".")[0] == "modeling_hire":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked)

import torch  # noqa: E402
import transformers  # noqa: E402


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def run(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(model.eval()(**batch).to_tuple())


def agree(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    """Up to the last digit: see `assert_same_outputs` of tiny_models.py, which this process cannot import."""
    return all(torch.allclose(*pair, atol=1e-6, rtol=1e-5) for pair in zip(actual, expected, strict=True))


def encoder_state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The bare model's weights. BERT's pooler is a part of some heads that the bare class happens to hold."""
    return {key: value for key, value in model.base_model.state_dict().items() if not key.startswith("pooler.")}


def check_entry(folder: Path, entry: str, own: bool) -> list[str]:
    """Load `folder` through one entry of its `auto_map` and compare with what its maker wrote down."""
    expected = torch.load(folder / "expected.pt")
    model, info = getattr(transformers, entry).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, ignore_mismatched_sizes=True
    )
    complaints = []

    def demand(holds: bool, what: str) -> None:
        if not holds:
            complaints.append(what)

    demand(type(model).__module__.startswith("transformers_modules."), f"class of {type(model).__module__}")
    demand(type(model).config_class.__name__ == type(model.config).__name__, "another config class")
    state = encoder_state(model)
    demand(state.keys() == expected["base"].keys(), "other names in the bare model")
    demand(all(torch.equal(state[key], value) for key, value in expected["base"].items()), "other weights")
    new = {*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])}
    if own:
        demand(not new and not info["unexpected_keys"], f"new or left over: {new} {info['unexpected_keys']}")
        outputs = run(model, expected["batch"])
        demand(agree(outputs, expected["outputs"]), "other outputs")
        complaints += check_saved_again(model, entry, folder)
    elif entry == "AutoModel":
        demand(all("pooler." in key for key in new), f"new: {new}")
        demand(agree(run(model, expected["plain_batch"])[:1], [expected["hidden"]]), "other hidden states")
    else:
        prefix = f"{model.base_model_prefix}."
        head = {key for key in model.state_dict() if not key.startswith(prefix) or "pooler." in key}
        demand(bool(new) and new <= head, f"new: {new}, where the head is {head}")
        demand(all(model.state_dict()[key].isfinite().all() for key in head), "a head that is not finite")
        demand(run(model, expected["plain_batch" if "Choice" not in entry else "choice_batch"]) != [], "no output")
    return complaints


def check_saved_again(model: torch.nn.Module, entry: str, folder: Path) -> list[str]:
    again = folder / "again"
    model.save_pretrained(again)
    auto_map = json.loads((again / "config.json").read_text())["auto_map"]
    original = json.loads((folder / "config.json").read_text())["auto_map"]
    complaints = [] if auto_map == original else [f"another auto_map after saving again: {auto_map}"]
    loaded = getattr(transformers, entry).from_pretrained(again, trust_remote_code=True)
    pairs = zip(loaded.state_dict().values(), model.state_dict().values(), strict=True)
    return (
        complaints if all(torch.equal(*pair) for pair in pairs) else [*complaints, "other weights after saving again"]
    )


def check_pipeline(folder: Path) -> list[str]:
    expected = torch.load(folder / "expected.pt")
    classify = transformers.pipeline("text-classification", model=str(folder), trust_remote_code=True)
    answers = classify(["w1 w2 w3", "w4"], top_k=None)
    labels = [sorted(answer["label"] for answer in each) for each in answers]
    complaints = [] if labels == [["LABEL_0", "LABEL_1"]] * 2 else [f"answered {answers}"]
    scores = [[next(a["score"] for a in each if a["label"] == f"LABEL_{i}") for i in (0, 1)] for each in answers]
    close = torch.allclose(torch.tensor(scores), expected["pipeline"], atol=1e-5)
    return complaints if close else [*complaints, f"scored {scores}"]


def check_encode(folder: Path) -> list[str]:
    """The sentence encoder's own `encode`, and its tokens through the pipeline that is meant for them."""
    expected = torch.load(folder / "expected.pt")
    model = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
    texts = ["w1 w2 w3", "", "w4"]
    embeddings = model.encode(texts, convert_to_tensor=True)
    complaints = [] if torch.allclose(embeddings, expected["encode"], atol=1e-6) else [f"encoded {embeddings}"]
    extract = transformers.pipeline("feature-extraction", model=str(folder), trust_remote_code=True)
    shapes = [(len(states[0]), len(states[0][0])) for states in extract(texts)]
    complaints += [] if shapes == [(5, 32), (2, 32), (3, 32)] else [f"extracted {shapes}"]
    if importlib.util.find_spec("sentence_transformers") is not None:
        from sentence_transformers import SentenceTransformer

        loaded = SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
        theirs = loaded.encode(texts, convert_to_tensor=True)
        complaints += [] if torch.allclose(theirs, expected["encode"], atol=1e-6) else [f"theirs: {theirs}"]
    return complaints


def main(root: Path) -> None:
    torch.set_num_threads(1)
    listener = Listener()
    logging.getLogger("transformers").addHandler(listener)
    findings: dict[str, list[str]] = {}
    for folder in sorted(path.parent for path in root.glob("*/config.json")):
        own = json.loads((folder / "own.json").read_text())
        checks = {entry: (check_entry, (folder, entry, entry == own)) for entry in own_map(folder)}
        if own == "AutoModelForSequenceClassification":
            checks["pipeline"] = (check_pipeline, (folder,))
        if "encode" in torch.load(folder / "expected.pt"):
            checks["encode"] = (check_encode, (folder,))
        for name, (check, arguments) in checks.items():
            listener.heard.clear()
            try:
                complaints = check(*arguments)
            except Exception:
                complaints = [traceback.format_exc()]
            findings[f"{folder.name}:{name}"] = complaints + [f"logged: {text}" for text in listener.heard]
    findings["not importable"] = [name for name in sys.modules if name.partition(".")[0] == "modeling_hire"]
    (root / "findings.json").write_text(json.dumps(findings))


def own_map(folder: Path) -> list[str]:
    entries = json.loads((folder / "config.json").read_text())["auto_map"]
    return [entry for entry in entries if entry != "AutoConfig"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))

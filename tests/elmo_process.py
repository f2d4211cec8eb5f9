"""Loads saved ELMo models and their tokenizer in a process that cannot import this library, and writes what it found.

Run by `test_elmo_remote_code.py` as `python -I elmo_process.py FOLDER`; writes `FOLDER/findings.json`, a list of
complaints for each folder and entry of its `auto_map`.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path


class Blocked:
    """An import finder that knows of no `modeling_hire`, and of no h5py."""

    @staticmethod
    def find_spec(name: str, path=None, target=None) -> None:
        if name.partition(".")[0] in ("modeling_hire", "h5py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Blocked)

import torch  # noqa: E402
import transformers  # noqa: E402


def check(folder: Path, entry: str, own: bool) -> list[str]:
    expected = torch.load(folder / "expected.pt")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model, info = getattr(transformers, entry).from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True, ignore_mismatched_sizes=True
    )
    batch = tokenizer(*expected["texts"], padding=True, return_tensors="pt")
    complaints = []

    def demand(holds: bool, what: str) -> None:
        if not holds:
            complaints.append(what)

    for part in (tokenizer, model, model.config):
        demand(type(part).__module__.startswith("transformers_modules."), f"a class of {type(part).__module__}")
    demand(all(torch.equal(batch[name], value) for name, value in expected["batch"].items()), "another batch")
    demand(tokenizer.words == expected["words"], "another vocabulary")
    state = model.base_model.state_dict()
    demand(all(torch.equal(state[name], value) for name, value in expected["base"].items()), "other weights")
    demand(all(value.isfinite().all() for value in model.state_dict().values()), "weights that are not finite")
    inside = "" if entry == "AutoModel" else "elmo."
    demand(
        not [key for key in info["missing_keys"] if inside and key.startswith(inside)], "a part of the model is new"
    )
    with torch.no_grad():
        outputs = model(**batch)
        hidden = model.base_model(**batch).last_hidden_state
    demand(torch.allclose(hidden, expected["hidden"], atol=1e-6), "other hidden states")
    if own:
        demand(not info["missing_keys"] and not info["unexpected_keys"], f"left over: {info}")
        pairs = zip(outputs.to_tuple(), expected["outputs"], strict=True)
        demand(all(torch.allclose(*pair, atol=1e-5) for pair in pairs), "other outputs")
        for part in (model, tokenizer):
            part.save_pretrained(folder / "again")
        for name in ("config.json", "tokenizer_config.json"):
            maps = [json.loads((path / name).read_text())["auto_map"] for path in (folder, folder / "again")]
            demand(maps[0] == maps[1], f"another auto_map in {name} after saving again: {maps[1]}")
        again = transformers.AutoTokenizer.from_pretrained(folder / "again", trust_remote_code=True)
        demand(again.words == tokenizer.words, "another vocabulary after saving again")
    return complaints


def main(root: Path) -> None:
    torch.set_num_threads(1)
    findings: dict[str, list[str]] = {}
    for folder in sorted(path.parent for path in root.glob("*/config.json")):
        own = json.loads((folder / "own.json").read_text())
        entries = json.loads((folder / "config.json").read_text())["auto_map"]
        for entry in entries.keys() - {"AutoConfig"}:
            try:
                findings[f"{folder.name}:{entry}"] = check(folder, entry, entry == own)
            except Exception:
                findings[f"{folder.name}:{entry}"] = [traceback.format_exc()]
    findings["importable"] = [name for name in sys.modules if name.partition(".")[0] in ("modeling_hire", "h5py")]
    (root / "findings.json").write_text(json.dumps(findings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Reading an encoder of transformers, where it keeps its layers, and how to execute them by a plan."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_MAPPING,
)

from .configuration_layer_plans import compose, parse_plan


# In the causal language model table only, yet they read in both directions unless told otherwise.
BIDIRECTIONAL = ("bert-generation", "xlnet")
# Fields of a config that say something of each layer.
PER_LAYER_FIELDS = ("layer_types", "attention_window")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


def check_encoder(config: PreTrainedConfig) -> None:
    """Raise a `ValueError` that says why a model of this configuration cannot be read layer by layer."""
    kind = config.model_type
    model_class = MODEL_MAPPING.get(type(config), None)
    if getattr(config, "is_encoder_decoder", False):
        reason = "is an encoder-decoder (seq2seq) model"
    elif getattr(config, "is_decoder", False) or getattr(config, "causal", False) is True:
        reason = "is set up to read from left to right (is_decoder or causal)"
    elif model_class is None:
        reason = "has no AutoModel class in transformers itself (an encoder that needs remote code is not taken)"
    elif isinstance(model_class, tuple | list):
        reason = "shortens the text on the way (it has a base and a full model)"  # Funnel, the only one
    elif model_class.main_input_name != "input_ids":
        reason = "does not take text"
    elif any(getattr(config, key, None) is not None for key in config.sub_configs):
        reason = "is made of several models"
    elif kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in (
        *MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        *BIDIRECTIONAL,
    ):
        reason = "is a decoder-only model"
    elif not isinstance(getattr(config, "num_hidden_layers", None), int):
        reason = "does not say how many layers it has"
    elif getattr(config, "inner_group_num", 1) != 1:
        reason = "returns several hidden states a layer (inner_group_num > 1)"
    else:
        return
    raise ValueError(f"encoder_config: {kind!r} {reason}; allowed is a text encoder such as 'bert' or 'roberta'.")


def pooler_keywords(config: PreTrainedConfig) -> dict[str, bool]:
    """Leave the pooler out where the class can: a module that is never used stops distributed training."""
    model_class = MODEL_MAPPING[type(config)]
    accepts = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if accepts else {}


def share_config(encoder: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Make every module of the encoder that holds its config hold this object instead."""
    old = encoder.config
    for module in encoder.modules():
        if getattr(module, "config", None) is old:
            module.config = config


def find_layers(encoder: PreTrainedModel) -> tuple[nn.Module, str]:
    """Where the encoder keeps its layers: the parent module, and the attribute that holds the list.

    Raises:
        ValueError: naming what was looked for, if there is no single such list.
    """
    inner = getattr(encoder, "encoder", None)
    if hasattr(inner, "albert_layer_groups"):
        return inner, "albert_layer_groups"
    count = encoder.config.num_hidden_layers
    found: list[tuple[str, nn.Module, str]] = []
    for path, parent in encoder.named_modules():
        for name, child in parent.named_children():
            if not isinstance(child, nn.ModuleList) or (len(child) != count and not isinstance(child, PlannedLayers)):
                continue
            blocks = list(child._modules.values())
            is_block = next(blocks[0].children(), None) is not None and len({type(block) for block in blocks}) == 1
            # A list inside a block (MobileBERT's feed-forward layers, say) can have the same length by chance.
            if is_block and not any(path.startswith(f"{outer}.") for outer, _, _ in found):
                found.append((f"{path}.{name}".lstrip("."), parent, name))
    if len(found) != 1:
        raise ValueError(
            f"encoder_config: looked in {type(encoder).__name__} for one list of {count} like layers and found "
            f"{[path for path, _, _ in found] or 'none'}, so the layers of a {encoder.config.model_type!r} model "
            "cannot be repeated or skipped (layer_plan)."
        )
    return found[0][1:]


def rearrange_fields(config: PreTrainedConfig, count: int, sources: Sequence[int]) -> None:
    """Make what a config says of each of `count` layers follow the layers to their new places (in place)."""
    for field in PER_LAYER_FIELDS:
        values = getattr(config, field, None)
        if isinstance(values, list) and len(values) == count:
            setattr(config, field, [values[layer] for layer in sources])


def rearrange_layers(
    weights: Mapping[str, torch.Tensor], path: str, sources: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Weights of a stack whose i-th layer is a copy of the layer `sources[i]`.

    Args:
        weights: names and tensors of the original.
        path (`str`): where the list of layers is, for example `"bert.encoder.layer"`.
        sources: layer numbers, in the order of the new stack.
    """
    rearranged, layers = {}, {}
    for name, value in weights.items():
        if name.startswith(f"{path}."):
            number, _, rest = name[len(path) + 1 :].partition(".")
            layers.setdefault(int(number), {})[rest] = value
        else:
            rearranged[name] = value
    for place, source in enumerate(sources):
        for rest, value in layers[source].items():
            rearranged[f"{path}.{place}.{rest}"] = value
    return rearranged


def deepened_config(config: PreTrainedConfig, sources: Sequence[int], untie_passes: bool = False) -> PreTrainedConfig:
    """A copy of an encoder's configuration whose i-th layer is what layer `sources[i]` was.

    `layer_sources` in it records where each layer comes from in the first original. `untie_passes`: each pass of an
    ALBERT gets weights of its own.

    Raises:
        ValueError: for an ALBERT of several groups that would no longer meet each layer's group at its place.
    """
    deeper, count = copy.deepcopy(config), config.num_hidden_layers
    recorded = getattr(config, "layer_sources", None)
    deeper.layer_sources = compose(recorded, sources)
    deeper.num_hidden_layers = len(sources)
    rearrange_fields(deeper, count, sources)
    if hasattr(config, "num_hidden_groups"):
        wanted = [group_of_pass(config, layer) for layer in sources]
        if untie_passes:
            deeper.num_hidden_groups = len(sources)
        elif wanted != [group_of_pass(deeper, layer) for layer in range(len(sources))]:
            raise ValueError(
                f"duplicate: this plan needs the layer groups {wanted} one after the other, and an ALBERT of "
                f"{config.num_hidden_groups} groups and {len(sources)} layers runs others; untie the passes "
                "(untie_passes=True)."
            )
    return deeper


def group_of_pass(config: PreTrainedConfig, layer: int) -> int:
    """The group of weights that an ALBERT uses in one of its passes."""
    return int(layer / (config.num_hidden_layers / config.num_hidden_groups))


class UnreadableWeightsError(OSError):
    """Weights that are damaged, or in a pickle; the message is one line."""


@contextmanager
def reading_weights(
    name: str | os.PathLike, loader: str = "AutoModel", subfolder: str | None = None, **kwargs: Any
) -> Iterator[None]:
    """Inside, weights are read; what is wrong with them is said in a way that helps.

    Args:
        name: the checkpoint's folder or repository.
        loader: the class by which a pickle can be converted.
        subfolder: where in it.
        kwargs: other keywords of `from_pretrained`, which do not matter here.

    Raises:
        UnreadableWeightsError: for a damaged file, or where there are pickled weights alone.
    """
    try:
        yield
    except UnreadableWeightsError:
        raise
    except OSError as error:
        folder = os.path.join(name, subfolder or "")
        files = os.listdir(folder) if os.path.isdir(folder) else ["*.bin"]  # a repository's are not known
        if "safetensors" not in str(error) or not any(file.endswith(PICKLES) for file in files):
            raise
        raise UnreadableWeightsError(
            f"{name}: {error} Weights in a pickle (pytorch_model.bin) are refused on purpose, since reading a pickle "
            f"can run code. If you trust the source, convert it once: {loader}.from_pretrained({str(name)!r}, "
            "use_safetensors=False).save_pretrained(FOLDER), the tokenizer likewise, and load FOLDER."
        ) from error
    except Exception as error:
        # By name: a file that travels with a checkpoint imports nothing but torch and transformers.
        if type(error).__name__ != "SafetensorError":
            raise
        raise UnreadableWeightsError(
            f"{name}: its weights cannot be read, a file is corrupt or cut short: {error}"
        ) from error


def quantised(name: str) -> ValueError:
    """The error for weights that cannot be copied layer by layer."""
    return ValueError(
        f"{name}: quantised weights cannot be copied layer by layer; duplicate the full-precision checkpoint, save "
        "it, and quantise that."
    )


def rebuild(
    model_class: type[PreTrainedModel],
    model: PreTrainedModel,
    config: PreTrainedConfig,
    path: str,
    sources: Sequence[int],
    **loading: Any,
) -> PreTrainedModel:
    """A model of the given class and configuration whose i-th layer is a copy of layer `sources[i]` of `model`.

    The class itself builds the stack, so that it is what a saved checkpoint will load as. Precision, attention, mode,
    and what is frozen are the original's; no memory is shared with it.

    Args:
        model_class, config: what to build.
        model: the original.
        path (`str`): where its list of layers is, for example `"bert.encoder.layer"`.
        sources: layer numbers of the original, in the order of the new stack.
        loading: where to put the model; unset, on the original's device.

    Raises:
        ValueError: if the class and configuration make another stack.
    """
    config._attn_implementation = model.config._attn_implementation
    if model.base_model is model and getattr(model, "pooler", True) is None:
        loading["add_pooling_layer"] = False
    rebuilt, info = model_class.from_pretrained(
        None,
        config=config,
        # Loading takes tensors as they are, and the original goes on living.
        state_dict={
            name: value.clone() for name, value in rearrange_layers(model.state_dict(), path, sources).items()
        },
        dtype=model.dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # told below, as what does not fit
        **loading,
    )
    wrong = sorted({*info["missing_keys"], *info["unexpected_keys"], *(key for key, *_ in info["mismatched_keys"])})
    if wrong:
        raise ValueError(
            f"duplicate: the weights of a {model.config.model_type!r} model differ by position or depth ({wrong[0]!r} "
            "does not fit the new stack), so its class cannot express this plan; allowed is one that leaves such a "
            "layer where it is."
        )
    trained = {name: torch.tensor(parameter.requires_grad) for name, parameter in model.named_parameters()}
    trained = rearrange_layers(trained, path, sources)
    for name, parameter in rebuilt.named_parameters():
        parameter.requires_grad_(bool(trained[name]))
    if "device_map" not in loading:
        rebuilt = rebuilt.to(model.device)
    return rebuilt.train(model.training)


def deepen(model: PreTrainedModel, sources: Sequence[int], untie_passes: bool = False) -> PreTrainedModel:
    """A deeper (or shallower) model of the same class, whose i-th layer is a copy of layer `sources[i]`.

    Raises:
        ValueError: if the layers are not found, or differ by position so that the class cannot express the new stack.
    """
    parent, name = find_layers(model.base_model)
    layers = getattr(parent, name)
    config = deepened_config(model.config, sources, untie_passes)
    if name == "albert_layer_groups":
        sources = [group_of_pass(model.config, layer) for layer in sources] if untie_passes else range(len(layers))
    path = next(path for path, module in model.named_modules() if module is layers)
    return rebuild(type(model), model, config, path, sources)


def duplicated(
    encoder_config: PreTrainedConfig, plan: Any, tie: bool, fields: dict[str, Any]
) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """The configuration of a duplicated encoder, and the fields of the model around it."""
    sources = parse_plan(plan, encoder_config.num_hidden_layers)
    if not tie:
        if getattr(encoder_config, "quantization_config", None):
            raise quantised(f"a {encoder_config.model_type!r} encoder")
        return deepened_config(encoder_config, sources), fields
    if fields.get("layer_plan") is not None:
        raise ValueError(
            f"layer_plan={fields['layer_plan']!r} and tie=True: tied duplicates are a layer_plan; give one."
        )
    return encoder_config, fields | {"layer_plan": sources}


class PlannedLayers(nn.ModuleList):
    """A list of unique layers that iterates, counts and slices as a plan says.

    The state dict holds each layer once, under the plain encoder's keys. (One module at two places of an ordinary list
    would load wrong weights without an error, and could not be saved.)
    """

    def __init__(self, layers: list[nn.Module], plan: list[int]):
        super().__init__()
        for index, layer in enumerate(layers):
            self.add_module(str(index), layer)
        self.plan = tuple(plan)

    def _executed(self) -> list[nn.Module]:
        layers = list(self._modules.values())
        return [layers[index] for index in self.plan]

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self._executed())

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, index: int | slice) -> nn.Module | list[nn.Module]:
        return self._executed()[index]


def install_layer_plan(encoder: PreTrainedModel, plan: list[int]) -> None:
    """Make an encoder execute its layers in the order of `plan`, with their weights tied (in place).

    Raises:
        ValueError: if the encoder has no single list of layers to execute.
    """
    if getattr(encoder.config, "is_heterogeneous", False):
        raise ValueError(f"layer_plan: the layers of a {encoder.config.model_type!r} model differ by position.")
    parent, name = find_layers(encoder)
    # Some encoders slice their list by `num_hidden_layers` or look up a layer's type by position: they must see the
    # executed depth. The checkpoint's config must not, so the encoder gets a copy.
    executing = copy.deepcopy(encoder.config)
    count = executing.num_hidden_layers
    order = list(plan)
    if name == "albert_layer_groups":
        order = [group_of_pass(executing, layer) for layer in plan]
        executing.num_hidden_groups = len(plan)
    executing.num_hidden_layers = len(plan)
    rearrange_fields(executing, count, plan)
    setattr(parent, name, PlannedLayers(list(getattr(parent, name)), order))
    share_config(encoder, executing)
    encoder.save_pretrained = refuse_to_save


def refuse_to_save(*args: Any, **kwargs: Any) -> None:
    """Stands in for the `save_pretrained` of an encoder that executes a plan."""
    raise ValueError(
        "This encoder executes a layer_plan, which a plain checkpoint cannot express: save the whole model, or "
        "duplicate the layers untied."
    )

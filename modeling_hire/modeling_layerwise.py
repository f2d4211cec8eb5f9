"""Models that wrap any encoder of transformers and read all of its hidden layers."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import logging
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from .configuration_layer_plans import parse_plan
from .configuration_layerwise import LayerwiseConfig, check_known_fields
from .modeling_encoder_layers import (
    check_encoder,
    deepen,
    duplicated,
    find_layers,
    install_layer_plan,
    pooler_keywords,
    quantised,
    reading_weights,
    share_config,
)


logger = logging.get_logger(__name__)

# Keywords of `from_pretrained` that say where and how to load, not what to build.
LOADING_KEYWORDS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
    "variant",
    "dtype",
    "torch_dtype",
    "attn_implementation",
    "quantization_config",
    "use_safetensors",
    "weights_only",
    "trust_remote_code",
    "code_revision",
)
HUB_KEYWORDS = LOADING_KEYWORDS[:7]
PLACEMENT_KEYWORDS = ("device_map", "max_memory", "offload_folder", "offload_buffers")


class LayerwisePreTrainedModel(PreTrainedModel):
    """Base of every model around an encoder: building, loading and checking it, and reading its hidden states.

    The bare model of a family holds `self.encoder`; a task model holds the bare model under `base_model_prefix`.
    `Class.from_pretrained` takes a checkpoint of its own family, or of any plain encoder with whatever head.
    """

    config: LayerwiseConfig
    config_class = LayerwiseConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def build_encoder(self, encoder: PreTrainedModel | None = None) -> PreTrainedModel:
        """The encoder of `config.encoder_config`, new or the one given, executing `config.layer_plan`.

        Raises:
            ValueError: if it is no encoder, or the plan cannot be executed in it.
        """
        check_wraps(type(self), self.config)
        self.config.check()  # a field may have been set since the configuration was made
        config = self.config.encoder_config
        if encoder is None:
            check_encoder(config)
            # `from_config` keeps the object it is given, so the encoder and the outer config stay in step.
            encoder = AutoModel.from_config(config, **pooler_keywords(config))
        else:
            # The attention implementation was settled when the encoder was loaded.
            config._attn_implementation = encoder.config._attn_implementation
            share_config(encoder, config)
        if any(getattr(module, "is_causal", False) is True for module in encoder.modules()):
            raise ValueError(
                f"encoder_config: {config.model_type!r} attends causally; allowed is an encoder that reads the whole "
                "text in both directions."
            )
        if self.config.layer_plan is not None:
            install_layer_plan(encoder, self.config.layer_plan)
        return encoder

    def set_attn_implementation(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers. An encoder that executes a plan has a config of its own, which must follow."""
        super().set_attn_implementation(*args, **kwargs)
        self.base_model.encoder.config._attn_implementation = self.config.encoder_config._attn_implementation

    def _replicate_for_data_parallel(self) -> nn.Module:
        # Transformers hangs its hooks on an encoder when it first runs. Replicas share the original's lists of hooks,
        # so that every one of them would add its own there, and all would see each layer several times.
        maybe_install_capturing_hooks(self.base_model.encoder)
        return super()._replicate_for_data_parallel()

    def get_input_embeddings(self) -> nn.Module:
        return self.base_model.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base_model.encoder.set_input_embeddings(value)

    def read_layers(self, **inputs: Any) -> BaseModelOutput:
        """Run the encoder and return its output, with `num_executed_layers + 1` hidden states of equal shape.

        Raises:
            ValueError: if the encoder does not return them; it names what came instead.
        """
        outputs = self.encoder(**inputs, output_hidden_states=True, return_dict=True)
        states, last = getattr(outputs, "hidden_states", None), getattr(outputs, "last_hidden_state", None)
        kind, expected = self.encoder.config.model_type, self.config.num_executed_layers + 1
        if states is None or last is None:
            raise ValueError(f"encoder_config: a {kind!r} model returns no hidden states; it cannot be read by layer.")
        if len(states) != expected:
            raise ValueError(
                f"encoder_config: a {kind!r} model returned {len(states)} hidden states where {expected} were "
                f"expected ({expected - 1} layers and the embeddings)."
            )
        if any(state.shape != last.shape for state in states):
            shapes = sorted({tuple(state.shape) for state in (*states, last)})
            raise ValueError(f"encoder_config: a {kind!r} model has layers of different shapes ({shapes}).")
        if states[-1] is not last and not self._ends_in_last(inputs):
            raise ValueError(
                f"encoder_config: the last hidden state of a {kind!r} model is not its `last_hidden_state` (a norm "
                "comes between them); it cannot be read by layer."
            )
        return outputs

    @torch.no_grad()
    def _ends_in_last(self, inputs: dict[str, Any]) -> bool:
        """Compare the two ways to see the last layer, once, on the first row and without dropout between them."""
        if not hasattr(self, "_last_is_last"):
            modes = {module: module.training for module in self.encoder.modules()}
            self.encoder.eval()
            outputs = self.encoder(**first_row(inputs), output_hidden_states=True, return_dict=True)
            for module, mode in modes.items():
                module.training = mode
            self._last_is_last = torch.equal(outputs.hidden_states[-1], outputs.last_hidden_state)
        return self._last_is_last

    def stream_layers(self, visit: Callable[[int, torch.Tensor], None], **inputs: Any) -> torch.Tensor | None:
        """Run the encoder and hand over each hidden state as it comes, holding none.

        Args:
            visit: called with the index of a hidden state (0 for the embeddings) and the state,
                `(batch, tokens, hidden_size)`, in order, the last one excepted.
            inputs: of the encoder.

        Returns:
            `last_hidden_state`, or `None` if this encoder's hidden states cannot be seen from outside it (nothing was
            visited then).
        """
        if not hasattr(self, "_can_stream"):
            self._can_stream = self._try_streaming(**inputs)
        if not self._can_stream:
            return None
        with self._visiting(visit):
            return self.encoder(**inputs, return_dict=True).last_hidden_state

    @contextlib.contextmanager
    def _visiting(self, visit: Callable[[int, torch.Tensor], None]) -> Iterator[None]:
        # Hidden state i is the *input* of the i-th layer that runs: what a layer returns may still go through a final
        # norm, and comes as a tuple in some encoders. A tied layer runs more than once, so calls are counted.
        calls, thread = iter(range(self.config.num_executed_layers)), threading.get_ident()

        def hook(module: nn.Module, args: tuple, kwargs: dict | None = None) -> None:
            # Another thread may run the same layers meanwhile: a server's, or a replica's of DataParallel. It is
            # called there without `kwargs` if it is being removed here.
            if threading.get_ident() == thread:
                visit(next(calls), args[0] if args else kwargs["hidden_states"])

        parent, name = find_layers(self.encoder)
        layers = getattr(parent, name)._modules.values()
        handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _try_streaming(self, **inputs: Any) -> bool:
        """Compare the two ways to see the layers on the first row of a batch."""
        seen: list[torch.Tensor] = []
        # Not the model's own device: a replica of DataParallel has no parameters to tell it.
        device = next(value.device for value in inputs.values() if torch.is_tensor(value))
        try:
            # In training mode a pass draws random numbers, and nobody asked for this one.
            with (
                torch.random.fork_rng([device] if device.type == "cuda" else []),
                self._visiting(lambda index, state: seen.append(state)),
            ):
                outputs = self.encoder(**first_row(inputs), output_hidden_states=True, return_dict=True)
        except (ValueError, StopIteration, KeyError):
            return False
        states, last = getattr(outputs, "hidden_states", None), getattr(outputs, "last_hidden_state", None)
        if states is None or last is None or any(state.shape != last.shape for state in states):
            return False  # `read_layers` says what is wrong
        return len(seen) == len(states) - 1 and all(map(torch.equal, (*seen, last), states))

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *args: Any,
        config: PreTrainedConfig | str | os.PathLike | None = None,
        **kwargs: Any,
    ) -> PreTrainedModel | tuple[PreTrainedModel, dict[str, Any]]:
        """Load a checkpoint of this family, or build the model around a plain encoder's checkpoint.

        Args:
            pretrained_model_name_or_path (`str`): a Hub repository or a folder. Its encoder may carry any head, which
                is dropped. `None` with `config` and `state_dict`: these weights, from no checkpoint.
            config (`LayerwiseConfig` or the name of one, *optional*): replaces the checkpoint's own, or the one built
                from `kwargs`.
            kwargs: how to load (`revision`, `token`, `dtype`, `device_map`, `attn_implementation`, ...) and, by name,
                fields of the config (`num_labels`, `weighting`, ...). `preset` names a preset of the config's class.
                `duplicate` (see [`parse_plan`]) duplicates layers of a plain encoder: each copy has its own weights,
                or with `tie=True` those of its source.

        Returns:
            The model, in evaluation mode; with `output_loading_info=True` also the lists of keys.

        Raises:
            ValueError: for an unknown keyword, or a checkpoint that holds no encoder.
            OSError: for a checkpoint that is not there, or cannot be read.
        """
        if pretrained_model_name_or_path is None:
            return super().from_pretrained(None, *args, config=config, **kwargs)
        hub = {key: kwargs[key] for key in HUB_KEYWORDS if kwargs.get(key) is not None}
        source, _ = PreTrainedConfig.get_config_dict(pretrained_model_name_or_path, **hub)
        kwargs.setdefault("use_safetensors", True)  # a pickle can run code when it is read
        if isinstance(config, str | os.PathLike):
            config = cls.config_class.from_pretrained(config, **hub)
        if config is not None:
            check_wraps(cls, config)
        own = "encoder_config" in source
        with reading_weights(pretrained_model_name_or_path, cls.__name__ if own else "AutoModel", **kwargs):
            if own:
                return cls._from_own(pretrained_model_name_or_path, args, config, source, kwargs)
            return cls._from_plain_encoder(pretrained_model_name_or_path, config, hub, kwargs)

    @classmethod
    def _from_own(cls, name: str, args: tuple, config: LayerwiseConfig | None, source: dict, kwargs: dict) -> Any:
        own = cls.config_class.model_type
        if not source.get("model_type", "").startswith(own.partition("_")[0]):
            raise ValueError(
                f"{name}: a checkpoint of type {source.get('model_type')!r} cannot be loaded into {cls.__name__} "
                f"(type {own!r}). Save its encoder by itself (`model.base_model.encoder.save_pretrained(folder)`) and "
                "load that."
            )
        for key in ("preset", "duplicate", "tie"):
            value = kwargs.pop(key, None)
            if value:
                raise ValueError(
                    f"{key}={value!r}: {name} has settings of its own; this argument is for a plain encoder."
                )
        try:
            return super().from_pretrained(name, *args, config=config, **kwargs)
        except TypeError as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if unknown and unknown[1] in kwargs:
                check_known_fields(cls.config_class, [unknown[1]], LOADING_KEYWORDS + PLACEMENT_KEYWORDS)
            raise

    @classmethod
    def _from_plain_encoder(cls, name: str, config: LayerwiseConfig | None, hub: dict, kwargs: dict) -> Any:
        with_info = kwargs.pop("output_loading_info", False)
        preset = kwargs.pop("preset", None)
        duplicate, tie = kwargs.pop("duplicate", None), kwargs.pop("tie", False)
        loading = {key: kwargs.pop(key) for key in LOADING_KEYWORDS if key in kwargs}
        if duplicate is not None and not tie and loading.get("quantization_config") is not None:
            raise quantised(name)
        placement = {key: kwargs.pop(key) for key in PLACEMENT_KEYWORDS if key in kwargs}
        internal = [key for key in kwargs if key.startswith("_") or key == "adapter_kwargs"]
        fields = {key: value for key, value in kwargs.items() if key not in internal}
        check_known_fields(cls.config_class, fields, LOADING_KEYWORDS + PLACEMENT_KEYWORDS)

        if config is None:
            encoder_config = AutoConfig.from_pretrained(name, **hub)
            check_encoder(encoder_config)
            plain_config = encoder_config
            if duplicate is not None:
                encoder_config, fields = duplicated(encoder_config, duplicate, tie, fields)
            make = cls.config_class.from_encoder_config
            config = (
                make(encoder_config, **fields)
                if preset is None
                else cls.config_class.preset(preset, encoder_config, **fields)
            )
        else:
            config = copy.deepcopy(config)
            plain_config = config.encoder_config
            if duplicate is not None:
                config.encoder_config, fields = duplicated(plain_config, duplicate, tie, fields)
            encoder_config = config.encoder_config
            for key, value in fields.items():
                setattr(config, key, value)
            config.check()
            check_encoder(encoder_config)
        encoder, info = AutoModel.from_pretrained(
            name,
            config=copy.deepcopy(plain_config),
            output_loading_info=True,
            **{key: value for key, value in loading.items() if key != "trust_remote_code"},
            **pooler_keywords(encoder_config),
        )
        if info["missing_keys"]:
            raise ValueError(
                f"{name}: the checkpoint lacks encoder weights, for example {sorted(info['missing_keys'])[0]!r}; "
                f"is it a {encoder_config.model_type!r} checkpoint?"
            )
        if encoder_config is not plain_config:
            encoder = deepen(encoder, parse_plan(duplicate, plain_config.num_hidden_layers))
        config.dtype = encoder_config.dtype = encoder.dtype
        # It goes into JSON, and where a local folder lies is nobody's business.
        config.encoder_config._name_or_path = "" if os.path.exists(name) else str(name)
        default = torch.get_default_dtype()
        torch.set_default_dtype(encoder.dtype if encoder.dtype.is_floating_point else default)
        try:
            model = cls(config, encoder=encoder)
        finally:
            torch.set_default_dtype(default)
        prefix = "encoder." if model.base_model is model else f"{cls.base_model_prefix}.encoder."
        new = sorted(key for key in model.state_dict() if not key.startswith(prefix))
        logger.warning(
            f"{cls.__name__} was built around the encoder of {name}. Newly initialised, to be trained before use: "
            f"{summarise(new)}. Dropped from the source: {summarise(sorted(info['unexpected_keys']))}."
        )
        model = place(model.eval(), **placement)
        info = info | {"missing_keys": set(new)}
        return (model, info) if with_info else model


def check_wraps(cls: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    """Raise a `ValueError` for a configuration that is an encoder's own, not one around it."""
    if not hasattr(config, "encoder_config"):
        raise ValueError(
            f"config: a configuration of type {config.model_type!r}; allowed is a {cls.config_class.__name__}, "
            "which wraps the encoder's as its encoder_config."
        )


def first_row(inputs: dict[str, Any]) -> dict[str, Any]:
    """The first example of a batch of encoder inputs."""
    return {key: value[:1] if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}


def place(model: PreTrainedModel, device_map: Any = None, max_memory: dict | None = None, **offload: Any) -> Any:
    """Put a model that was built in memory where `device_map` says."""
    if device_map is None:
        return model
    from transformers.integrations.accelerate import _get_device_map, accelerate_dispatch, check_and_set_device_map

    device_map = _get_device_map(model, check_and_set_device_map(device_map), max_memory, None)
    places = set(device_map.values())
    if len(places) == 1 and "disk" not in places:
        return model.to(*places)
    folder = offload.get("offload_folder")
    if "disk" in places and folder is not None:
        # accelerate takes an index that it finds there for this model's, whatever was written last time.
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, "index.json"))
    if device_map == {"": "disk"}:  # which accelerate does not take
        device_map = dict.fromkeys(dict(model.named_children()), "disk")
    accelerate_dispatch(model, None, device_map, folder, None, offload.get("offload_buffers", False))
    return model


def summarise(keys: list[str]) -> str:
    """The modules that a list of parameter names belongs to, or the word for none."""
    return ", ".join(dict.fromkeys(key.rpartition(".")[0] for key in keys)) or "nothing"

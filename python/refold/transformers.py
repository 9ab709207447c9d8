"""Files of refold in Hugging Face transformers: generation, pipelines, PEFT, training.

>>> import refold.transformers
>>> from transformers import pipeline
>>> folder = refold.transformers.prepare("small.gguf", "small")
>>> pipeline("text-generation", model=folder)("The sky is")

Importing this registers the model type "refold" with AutoConfig and AutoModelForCausalLM: no remote code. The model
is refold.torch, so what is shared is one Parameter, has gradients and is written back shared. refold's own engine
(refold.load) is faster where there are no gradients.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Union

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationMixin
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from . import _native
from ._errors import FileError, UnsupportedError, UsageError
from ._stored_model import StoredModel
from ._stored_model import open as open_model
from ._topology import LowRank, Plus, RowParts
from .torch import Model

if TYPE_CHECKING:
    from ._model import PathLike

_FILE = "model.gguf"


class RefoldConfig(transformers.PretrainedConfig):
    """Names the file, which has the configuration; the other fields are those that transformers asks for."""

    model_type = "refold"

    def __init__(self, refold_file: str = "", **fields: Any) -> None:
        """
        Args:
            refold_file: a file or name as for refold.open; relative to the directory that config.json is in.
        """
        self.refold_file = refold_file
        fields.setdefault("tie_word_embeddings", False)  # what is tied is one Parameter anyway
        super().__init__(**fields)

    @classmethod
    def of(cls, model: StoredModel) -> RefoldConfig:
        c = model.config
        try:
            bos, eos = _native.special_tokens(model.path)
        except (FileError, UnsupportedError):  # there is no tokenizer
            bos = eos = None
        return cls(
            refold_file=os.path.abspath(model.path),
            architectures=["RefoldForCausalLM"],
            vocab_size=c["n_vocab"],
            hidden_size=c["n_embd"],
            intermediate_size=c["n_ff"],
            num_hidden_layers=len(model.layers),
            num_attention_heads=c["n_head"],
            num_key_value_heads=c["n_head_kv"],
            head_dim=c["head_dim"],
            max_position_embeddings=c["context_length"],
            bos_token_id=bos,
            eos_token_id=eos,
        )


class RefoldForCausalLM(transformers.PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A decoder of refold's, as `model`, a refold.torch.Model."""

    config_class = RefoldConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, config: RefoldConfig, model: Optional[Model] = None) -> None:
        super().__init__(config)
        self.model = Model(open_model(config.refold_file)) if model is None else model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: PathLike,
        *_: Any,
        config: Optional[RefoldConfig] = None,
        dtype: Union[None, str, torch.dtype] = None,
        torch_dtype: Union[None, str, torch.dtype] = None,
        device_map: Any = None,
        **ignored: Any,
    ) -> RefoldForCausalLM:
        """
        Args:
            pretrained_model_name_or_path: a directory of prepare() or save_pretrained(), or whatever refold.open
                takes.
            dtype: of the Parameters; None and "auto": float32.
            device_map: a device, or {"": device}.
            ignored: what concerns downloads and transformers' own loading.
        """
        name = os.fspath(pretrained_model_name_or_path)
        file = _file_of(name)
        stored = open_model(file)
        wanted = dtype if dtype is not None else torch_dtype
        if isinstance(wanted, str):
            wanted = None if wanted == "auto" else getattr(torch, wanted)
        fresh = RefoldConfig.of(stored)
        if config is not None:
            config.refold_file = fresh.refold_file
        out = cls(config or fresh, Model(stored, wanted or torch.float32))
        device = device_map.get("") if isinstance(device_map, dict) else device_map
        if isinstance(device_map, dict) and (len(device_map) != 1 or device is None):
            raise UnsupportedError(f"[transformers] device_map: got {device_map}, expected one device")
        if device not in (None, "auto"):
            out = out.to(device)
        out.eval()
        return out

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_values: Optional[Cache] = None,
        labels: Optional[torch.Tensor] = None,
        use_cache: Optional[bool] = None,
        logits_to_keep: int = 0,
        inputs_embeds: Optional[torch.Tensor] = None,
        return_dict: Optional[bool] = None,
        **others: Any,
    ) -> Union[CausalLMOutputWithPast, Tuple[Any, ...]]:
        """Logits [B, T, V] of input_ids [B, T]; the loss where there are labels [B, T] (-100: none there).

        Positions count the tokens that attention_mask [B, S] shows; position_ids are not read.
        """
        if input_ids is None or inputs_embeds is not None:
            raise UnsupportedError("[transformers] inputs_embeds are not covered, only input_ids")
        if use_cache is None:
            use_cache = not self.training and labels is None
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        logits = self.model(
            input_ids, attention_mask, past_key_values if use_cache else None, last=logits_to_keep
        )
        loss = None
        if labels is not None:
            counted = {k: v for k, v in others.items() if k == "num_items_in_batch"}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **counted)
        out = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
        return out if return_dict is not False else out.to_tuple()

    def save_pretrained(self, save_directory: PathLike, *_: Any, **ignored: Any) -> None:
        """Writes model.gguf, with the Parameters' values and their sharing, config.json and the tokenizer."""
        folder = os.fspath(save_directory)
        os.makedirs(folder, exist_ok=True)
        self.model.save(os.path.join(folder, _FILE), recipe="trained with transformers", overwrite=True)
        _describe(open_model(os.path.join(folder, _FILE)), folder, _FILE)

    def get_input_embeddings(self) -> torch.nn.Module:
        tables: Dict[str, torch.nn.Module] = dict(self.model.tables.items())
        return tables["token_embd"]

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.model.output

    def tie_weights(self, *_: Any, **__: Any) -> None:
        """What is tied is one Parameter."""

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Weights are those of the file."""


def prepare(source: PathLike, directory: PathLike, *, copy: bool = False) -> str:
    """Writes a directory that transformers' from_pretrained() and pipeline() take: config.json and the tokenizer.

    Args:
        source: a model, as for refold.open.
        directory: is made where it does not exist.
        copy: the model goes in as well; else config.json names the file.

    Returns:
        The directory.
    """
    folder = os.fspath(directory)
    os.makedirs(folder, exist_ok=True)
    model = open_model(source)
    file = os.path.abspath(model.path)
    if copy:
        if os.path.isdir(file):
            raise UsageError(f"[transformers] copy: '{file}' is a directory, expected a GGUF file")
        _copy(file, os.path.join(folder, _FILE))
        file = _FILE
    _describe(model, folder, file)
    return folder


def tokenizer(source: PathLike) -> Any:
    """The tokenizer of a model as transformers' own."""
    with tempfile.TemporaryDirectory() as folder:
        open_model(source).save_tokenizer(folder)
        return AutoTokenizer.from_pretrained(folder)


def with_lora(adapted: Any) -> StoredModel:
    """The model of a PeftModel with its active LoRA as low-rank terms of the topology (Plus), one for each layer.

    So weights that layers share stay shared, and refold runs and saves the result:

    >>> refold.transformers.with_lora(peft.get_peft_model(model, ...)).save("adapted.gguf")

    Raises UnsupportedError for adapters that are no plain LoRA of slots.
    """
    base = adapted.get_base_model()
    if not isinstance(base, RefoldForCausalLM):
        raise UsageError(f"[transformers] with_lora: got a model of {type(base).__name__}, expected refold's")
    model: StoredModel = base.model.to_refold()
    names = list(adapted.active_adapters)
    if len(names) != 1:
        raise UsageError(f"[transformers] with_lora: {len(names)} active adapters, expected one")
    (name,) = names
    adapters = [
        (w, m) for w, m in base.model.named_modules() if hasattr(m, "lora_A") or hasattr(m, "modules_to_save")
    ]
    if not adapters:
        raise UnsupportedError("[transformers] with_lora: the adapter has no LoRA")
    for where, module in adapters:
        found = re.fullmatch(r"layers\.(\d+)\.((?:attn|ffn)\.\w+)", where)
        plain = name in getattr(module, "lora_A", {}) and not module.merged
        if found is None or not plain or getattr(module, "lora_variant", {}).get(name):
            raise UnsupportedError(
                f"[transformers] with_lora: the adapter of '{where}' is no plain LoRA of a slot"
            )
        slots, slot = model.layers[int(found[1])], found[2]
        expression = slots[slot]
        if isinstance(expression, (Plus, RowParts)):
            raise UnsupportedError(f"[transformers] with_lora: layer {found[1]} {slot} has a LoRA already")
        u, v = (f"blk.{found[1]}.{slot.replace('.', '_')}.lora_{part}" for part in "ba")
        scaled = module.lora_B[name].weight * module.scaling[name]  # [out, rank]
        model.tensors[u] = scaled.detach().float().cpu().numpy()
        model.tensors[v] = module.lora_A[name].weight.detach().float().cpu().numpy()
        slots[slot] = Plus(expression, LowRank(u, v))
    return model


def _copy(source: str, target: str) -> None:
    """Complete or not at all; a link of the target's name is replaced, and the file that it leads to stays."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(target)) as folder:
        whole = os.path.join(folder, os.path.basename(target))
        shutil.copyfile(source, whole)
        os.replace(whole, target)


def _describe(model: StoredModel, folder: str, file: str) -> None:
    model.save_tokenizer(folder)
    config = RefoldConfig.of(model)
    config.refold_file = file
    config.save_pretrained(folder)


def _file_of(name: str) -> str:
    path = os.path.join(name, "config.json")
    if not os.path.isdir(name):
        return name
    try:
        with open(path, encoding="utf-8") as file:
            fields: Dict[str, Any] = json.load(file)
    except OSError as error:
        raise FileError(f"[transformers] cannot read '{path}': {error.strerror}") from None
    if fields.get("model_type") != RefoldConfig.model_type:
        return name  # a Hugging Face checkpoint, which refold reads
    return os.path.join(name, fields["refold_file"])


AutoConfig.register(RefoldConfig.model_type, RefoldConfig)
AutoModelForCausalLM.register(RefoldConfig, RefoldForCausalLM)

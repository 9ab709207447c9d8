"""Checkpoints of Llama, Mixtral and Ouro with random weights, for measurements that depend on sizes only. Python's standard library only."""
import dataclasses
import json
import pathlib
import random
import shutil
import struct
import tempfile

from common import REFOLD, ROOT, WORK, run


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int = 32000
    context: int = 2048
    loops: int = 0  # of an Ouro; 0: no loops
    experts: int = 0  # of a Mixtral, `ffn` wide; 0: no mixture
    experts_used: int = 0


TINY_LLAMA = Shape(layers=22, width=2048, ffn=5632, heads=32, kv_heads=4)
SHAPES = {
    "tinyllama": TINY_LLAMA,
    "llama-2-7b": Shape(layers=32, width=4096, ffn=11008, heads=32, kv_heads=32, context=4096),
    "llama-3.1-8b": Shape(layers=32, width=4096, ffn=14336, heads=32, kv_heads=8, context=131072),
    # With a small vocabulary: blocks, not the head, are what is measured.
    "gemma-2b": Shape(layers=18, width=2048, ffn=16384, heads=8, kv_heads=1, context=8192),
}


def tensors(shape):
    width, kv = shape.width, shape.width * shape.kv_heads // shape.heads
    yield "model.embed_tokens.weight", (shape.vocabulary, width)
    for i in range(shape.layers):
        name = f"model.layers.{i}."
        yield name + "input_layernorm.weight", (width,)
        yield name + "self_attn.q_proj.weight", (width, width)
        yield name + "self_attn.k_proj.weight", (kv, width)
        yield name + "self_attn.v_proj.weight", (kv, width)
        yield name + "self_attn.o_proj.weight", (width, width)
        yield name + "post_attention_layernorm.weight", (width,)
        if shape.loops:
            yield name + "input_layernorm_2.weight", (width,)
            yield name + "post_attention_layernorm_2.weight", (width,)
        if shape.experts:
            yield name + "block_sparse_moe.gate.weight", (shape.experts, width)
        else:
            yield name + "mlp.gate_proj.weight", (shape.ffn, width)
            yield name + "mlp.up_proj.weight", (shape.ffn, width)
            yield name + "mlp.down_proj.weight", (width, shape.ffn)
        for expert in range(shape.experts):
            for map, dimensions in {"w1": (shape.ffn, width), "w3": (shape.ffn, width), "w2": (width, shape.ffn)}.items():
                yield f"{name}block_sparse_moe.experts.{expert}.{map}.weight", dimensions
    yield "model.norm.weight", (width,)
    if shape.loops:
        yield "model.early_exit_gate.weight", (1, width)
        yield "model.early_exit_gate.bias", (1,)
    yield "lm_head.weight", (shape.vocabulary, width)


def size(dimensions):
    elements = 1
    for n in dimensions:
        elements *= n
    return 2 * elements


def random_bf16(count):
    """Numbers of magnitudes from 2^-6 to 2^-5, of either sign."""
    source = random.Random(0)
    block = bytearray(2 * count)
    block[0::2] = source.randbytes(count)
    block[1::2] = source.randbytes(count).translate(bytes([0x3C, 0xBC]) * 128)
    return memoryview(bytes(block))


def write_shard(path, shard, block):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dimensions in shard:
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [offset, offset + size(dimensions)]}
        offset += size(dimensions)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for index, (_, dimensions) in enumerate(shard):
            # Every tensor uses another part of the block.
            first, left = 2 * (index * 104729 % 1000003), size(dimensions)
            while left > 0:
                part = block[first : first + left]
                file.write(part)
                left, first = left - len(part), 0


def write_checkpoint(folder, shape):
    """A directory with BF16 weights in two shards; returns their bytes."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "hidden_size": shape.width, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    }
    if shape.experts:
        config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": shape.experts,
                   "num_experts_per_tok": shape.experts_used}
    if shape.loops:
        config |= {"architectures": ["OuroForCausalLM"], "model_type": "ouro", "total_ut_steps": shape.loops}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    every = list(tensors(shape))
    half = len(every) // 2
    block = random_bf16(1 << 25)
    weight_map = {}
    for number, shard in enumerate([every[:half], every[half:]], 1):
        name = f"model-{number:05}-of-00002.safetensors"
        write_shard(folder / name, shard, block)
        weight_map.update({tensor: name for tensor, _ in shard})
    total = sum(size(dimensions) for _, dimensions in every)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return total


def add_tokenizer(folder):
    """That of a test, of few tokens."""
    for file in (ROOT / "tests/fixtures/tokenizers/bpe_llama3").iterdir():
        if file.name != "config.json":
            shutil.copy(file, folder)


def quantized(name, shape, kind):
    """A GGUF file of such a model, made once."""
    path = WORK / f"{name}-{kind}.gguf"
    if not path.exists():
        WORK.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            checkpoint = pathlib.Path(folder) / "model"
            write_checkpoint(checkpoint, shape)
            add_tokenizer(checkpoint)
            run(REFOLD, "quantize", checkpoint, "-o", path, "--type", kind, "--quiet")
    return path

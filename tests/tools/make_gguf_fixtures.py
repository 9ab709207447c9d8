#!/usr/bin/env python3
"""Makes tests/fixtures: tiny GGUF models with golden outputs, out of tiny Hugging Face style Llama checkpoints.

    python3 -m venv VENV && VENV/bin/pip install gguf==0.19.0 numpy==2.4.6 safetensors==0.8.0 sentencepiece==0.2.3
    VENV/bin/python tests/tools/make_gguf_fixtures.py SOURCE tests/fixtures

SOURCE holds the checkpoints (random weights, see tests/fixtures/README.md):

    llama/                MHA, output separate, SentencePiece tokenizer (tokenizer.model)
    llama_gqa/            GQA, tied output, llama3 rope_scaling, byte-level BPE tokenizer (tokenizer.json)
    llama_bf16_sharded/   GQA, bfloat16 in several shards, no tokenizer
        each: config.json, *.safetensors, golden.json, golden.safetensors
    methods/directshare.{json,safetensors}
    tokenizers/{spm_llama,bpe_llama3}/golden.json

The same SOURCE gives the same bytes: nothing here is random or dated.  What is written, relative to the output folder:

    <name>/model.gguf, <name>/golden.json, <name>/golden.safetensors, <name>/tokenizer_golden.json
    quantized/{f16,q8_0,q4_0,q4_1}.gguf     llama_gqa with its matrices in that type
    directshare/directshare.{json,safetensors}
    README.md                               only the table between the two "files" markers is rewritten

Keys, tensor names, the order of the rows of q and k, and rope_freqs.weight are those that llama.cpp's
convert_hf_to_gguf.py writes for LlamaForCausalLM, with two differences: rope.freq_base, attention.key_length and
attention.value_length are always written, also where config.json is silent; and <unk> keeps the type UNKNOWN that
tokenizer.model gives it.
"""
import argparse
import hashlib
import json
import math
import pathlib
import shutil
import struct

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file
from sentencepiece import SentencePieceProcessor

ARCH = "llama"
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
          "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
QUANTIZED = {
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
    "q4_1": (gguf.GGMLQuantizationType.Q4_1, gguf.LlamaFileType.MOSTLY_Q4_1),
}
F32, BF16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.BF16


# ---- reading the checkpoint

def read_safetensors(path):
    """name -> float32 array; a bfloat16 tensor gives a uint16 array of its bit patterns (numpy has no bfloat16)."""
    raw = path.read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = t["data_offsets"]
        dtype = {"F32": "<f4", "BF16": "<u2"}[t["dtype"]]
        out[name] = np.frombuffer(raw[8 + n + begin:8 + n + end], dtype).reshape(t["shape"])
    return out


def read_checkpoint(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_safetensors(folder / "model.safetensors")
    where = json.loads(index.read_text())["weight_map"]
    tensors = {}
    for shard in sorted(set(where.values())):
        tensors.update(read_safetensors(folder / shard))
    if set(tensors) != set(where):
        raise SystemExit(f"{index}: the shards do not hold the tensors that it lists")
    return tensors


def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


# ---- the model

def interleave(w, n_head):
    """Rows of one head: HF rotates (i, i + d/2), llama.cpp (2i, 2i + 1).  The same order as LlamaModel.permute."""
    return w.reshape(n_head, 2, w.shape[0] // n_head // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def rope_factors(cfg, head_dim):
    """llama3 rope scaling as divisors of the frequencies, or None."""
    s = cfg.get("rope_scaling")
    if s is None:
        return None
    if s["rope_type"] != "llama3":
        raise SystemExit(f"rope_type {s['rope_type']} is not made here")
    base = np.float32(cfg["rope_theta"])
    freqs = np.float32(1) / base ** (np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    low, high, ctx = s["low_freq_factor"], s["high_freq_factor"], s["original_max_position_embeddings"]
    out = []
    for wavelen in (2 * math.pi / float(f) for f in freqs):
        if wavelen < ctx / high:
            out.append(1.0)
        elif wavelen > ctx / low:
            out.append(s["factor"])
        else:
            smooth = (ctx / wavelen - low) / (high - low)
            out.append(1 / ((1 - smooth) / s["factor"] + smooth))
    return np.array(out, np.float32)


def llama_tensors(cfg, weights):
    """(GGUF name, array) in the order of the layers."""
    H, KV = cfg["num_attention_heads"], cfg["num_key_value_heads"]
    yield "token_embd.weight", weights["model.embed_tokens.weight"]
    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for i in range(cfg["num_hidden_layers"]):
        for hf, name in names.items():
            w = weights[f"model.layers.{i}.{hf}.weight"]
            if name == "attn_q":
                w = interleave(w, H)
            if name == "attn_k":
                w = interleave(w, KV)
            yield f"blk.{i}.{name}.weight", w
    yield "output_norm.weight", weights["model.norm.weight"]
    if not cfg["tie_word_embeddings"]:
        yield "output.weight", weights["lm_head.weight"]


def add_tensor(writer, name, w, qtype):
    """qtype None: as it is in the checkpoint.  Vectors (norms, rope_freqs) are always F32."""
    stored_bf16 = w.dtype == np.uint16
    if w.ndim == 1 or qtype == F32:
        writer.add_tensor(name, np.ascontiguousarray(bf16_to_f32(w) if stored_bf16 else w))
    elif stored_bf16:
        if qtype is not None:
            raise SystemExit("quantizing from bfloat16 is not done here")
        writer.add_tensor(name, np.ascontiguousarray(w).view(np.uint8), raw_dtype=BF16)
    elif qtype is None:
        writer.add_tensor(name, np.ascontiguousarray(w))
    else:
        q = gguf.quants.quantize(np.ascontiguousarray(w), qtype)
        writer.add_tensor(name, q, raw_dtype=qtype)


def write_model(path, title, cfg, weights, add_tokenizer, qtype, file_type):
    head_dim = cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
    path.parent.mkdir(parents=True, exist_ok=True)
    w = gguf.GGUFWriter(path, ARCH)
    w.add_type("model")
    w.add_name(title)
    w.add_block_count(cfg["num_hidden_layers"])
    w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"])
    w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"])
    w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_rope_freq_base(cfg.get("rope_theta", 10000.0))
    w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_file_type(file_type)
    w.add_vocab_size(cfg["vocab_size"])
    w.add_rope_dimension_count(head_dim)
    add_tokenizer(w, cfg)
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    factors = rope_factors(cfg, head_dim)
    if factors is not None:
        w.add_tensor("rope_freqs.weight", factors)
    for name, tensor in llama_tensors(cfg, weights):
        add_tensor(w, name, tensor, qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- tokenizers

def sentencepiece_tokenizer(folder):
    def add(w, cfg):
        sp = SentencePieceProcessor()
        sp.LoadFromFile(str(folder / "tokenizer.model"))
        if sp.vocab_size() != cfg["vocab_size"]:
            raise SystemExit("tokenizer.model and config.json differ in the size of the vocabulary")
        tokens, scores, types = [], [], []
        for i in range(sp.vocab_size()):
            tokens.append(sp.IdToPiece(i).encode())
            scores.append(sp.GetScore(i))
            types.append(gguf.TokenType.UNKNOWN if sp.IsUnknown(i) else gguf.TokenType.CONTROL if sp.IsControl(i)
                         else gguf.TokenType.UNUSED if sp.IsUnused(i) else gguf.TokenType.BYTE if sp.IsByte(i)
                         else gguf.TokenType.NORMAL)
        w.add_tokenizer_model("llama")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
        w.add_token_scores(scores)
        w.add_token_types(types)
        w.add_bos_token_id(sp.bos_id())
        w.add_eos_token_id(sp.eos_id())
        w.add_unk_token_id(sp.unk_id())
        w.add_add_bos_token(True)
        w.add_add_eos_token(False)
        w.add_add_space_prefix(True)
    return add


def bpe_tokenizer(folder):
    def add(w, cfg):
        doc = json.loads((folder / "tokenizer.json").read_text())
        special = json.loads((folder / "tokenizer_config.json").read_text())
        model = doc["model"]
        vocab = dict(model["vocab"])
        control = {t["content"] for t in doc["added_tokens"] if t["special"]}
        vocab.update({t["content"]: t["id"] for t in doc["added_tokens"]})
        tokens = sorted(vocab, key=vocab.get)
        if [vocab[t] for t in tokens] != list(range(cfg["vocab_size"])):
            raise SystemExit("tokenizer.json and config.json differ in the size of the vocabulary")
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("llama-bpe")
        w.add_token_list(tokens)
        w.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens])
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in model["merges"]])
        w.add_bos_token_id(vocab[special["bos_token"]])
        w.add_eos_token_id(vocab[special["eos_token"]])
        w.add_add_bos_token(True)
        w.add_chat_template(CHATML)
    return add


def no_tokenizer(w, cfg):
    del cfg
    w.add_tokenizer_model("none")  # llama.cpp takes "no_vocab" as well; vocab_size gives it the number of tokens


# ---- goldens

def reduce_golden(source, out):
    g = json.loads((source / "golden.json").read_text())
    t = load_file(source / "golden.safetensors")
    names = [f"{kind}.{i}" for i in range(len(g["rows"])) for kind in ("input_ids", "logits")] + ["greedy.logits"]
    for i, row in enumerate(g["rows"]):
        if t[f"input_ids.{i}"].tolist() != row:
            raise SystemExit(f"{source}: row {i} of golden.json and golden.safetensors differ")
    keep = {k: t[k] for k in names}
    save_file(keep, out / "golden.safetensors")
    fields = ("architecture", "seed", "vocab_size", "rows", "greedy", "logits_abs_max", "versions")
    doc = {k: g[k] for k in fields} | {"tensors": {k: list(v.shape) for k, v in keep.items()}}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in doc.items()]  # one line a field
    (out / "golden.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


# ---- the table in README.md

def describe(name):
    """What the file is; None for a file that is not of this program."""
    top, _, file = name.partition("/")
    models = {
        "llama": "llama: 4 layers, 4 heads, no GQA, output separate; SentencePiece tokenizer; F32",
        "llama_gqa": "llama: 4 layers, 4 heads over 2 KV heads, tied output, rope_freqs.weight; BPE tokenizer, ChatML; F32",
        "llama_bf16_sharded": "llama: 4 layers, 4 heads over 2 KV heads, output separate; no tokenizer; BF16, norms F32",
    }
    if top in models:
        return {"model.gguf": models[top],
                "golden.json": "token rows and greedy continuation, of transformers in float32",
                "golden.safetensors": "`input_ids.i` [T], `logits.i` [T,V] of every row, `greedy.logits` [16,V]",
                "tokenizer_golden.json": "texts with their token ids, of transformers (and sentencepiece)"}.get(file)
    if top == "quantized" and file.partition(".")[0] in QUANTIZED:
        return f"llama_gqa/model.gguf with all matrices in {file.split('.')[0].upper()}, vectors F32"
    return {"directshare/directshare.json": "DirectShare: matches and pairs of heads of `llama`",
            "directshare/directshare.safetensors": "DirectShare: logits of the last 4 layers",
            "directshare/README": "what the two hold"}.get(name)


def seed_of(source, name):
    top = name.partition("/")[0]
    folder = {"quantized": "llama_gqa", "directshare": "llama"}.get(top, top)
    if name.endswith(("tokenizer_golden.json", "README")):
        return "-"
    return str(json.loads((source / folder / "golden.json").read_text())["seed"])


def write_table(source, out):
    rows = ["| file | bytes | what | seed | SHA-256 |", "|---|---|---|---|---|"]
    for p in sorted(p for p in out.rglob("*") if p.is_file() and p != out / "README.md"):
        name = p.relative_to(out).as_posix()
        if describe(name) is None:
            continue
        data = p.read_bytes()
        rows.append(f"| {name} | {len(data)} | {describe(name)} | {seed_of(source, name)} | "
                    f"`{hashlib.sha256(data).hexdigest()}` |")
    readme = out / "README.md"
    text = readme.read_text()
    begin, end = "<!-- files: begin -->\n", "<!-- files: end -->"
    head, rest = text.split(begin)
    readme.write_text(head + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source", type=pathlib.Path, help="folder of the checkpoints")
    p.add_argument("out", type=pathlib.Path, help="tests/fixtures")
    a = p.parse_args()

    T = gguf.LlamaFileType
    models = {"llama": (sentencepiece_tokenizer(a.source / "llama"), T.ALL_F32),
              "llama_gqa": (bpe_tokenizer(a.source / "llama_gqa"), T.ALL_F32),
              "llama_bf16_sharded": (no_tokenizer, T.MOSTLY_BF16)}
    for name, (tokenizer, file_type) in models.items():
        cfg = json.loads((a.source / name / "config.json").read_text())
        weights = read_checkpoint(a.source / name)
        write_model(a.out / name / "model.gguf", name, cfg, weights, tokenizer, None, file_type)
        reduce_golden(a.source / name, a.out / name)
        if name == "llama_gqa":
            for kind, (qtype, file_type) in QUANTIZED.items():
                write_model(a.out / "quantized" / f"{kind}.gguf", f"{name} {kind}", cfg, weights, tokenizer, qtype, file_type)

    for tokenizer, name in (("spm_llama", "llama"), ("bpe_llama3", "llama_gqa")):
        shutil.copyfile(a.source / "tokenizers" / tokenizer / "golden.json", a.out / name / "tokenizer_golden.json")
    (a.out / "directshare").mkdir(parents=True, exist_ok=True)
    for ext in ("json", "safetensors"):
        shutil.copyfile(a.source / "methods" / f"directshare.{ext}", a.out / "directshare" / f"directshare.{ext}")
    write_table(a.source, a.out)


if __name__ == "__main__":
    main()

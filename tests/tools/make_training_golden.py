"""Writes tests/fixtures/training/golden.json: ten steps of training the tiny Llama fixture with transformers and
torch.optim.AdamW in float32 - losses, norms of gradients and weights by tensor (named as in GGUF), and some values.

Run it with the Python of scripts/check-transformers: PYTHON tests/tools/make_training_golden.py
"""
import json
import os
import pathlib

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
MODEL = "hf/llama_gqa"
STEPS, SEQUENCES, CONTEXT = 10, 3, 20
# This epsilon, as Adam with a small one makes as much of gradients that are nothing but rounding as of others.
OPTIONS = {"learning_rate": 3e-3, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-5, "weight_decay": 0.1, "clip": 1.0}
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
# Rows of Q and K are in another order in GGUF.
VALUES = ("token_embd", "output_norm", "blk.0.attn_norm", "blk.1.attn_v", "blk.2.ffn_down", "blk.3.attn_output")


def gguf_name(name):
    name = name.removesuffix(".weight")
    if name == "model.embed_tokens":
        return "token_embd"
    if name == "model.norm":
        return "output_norm"
    _, _, layer, module = name.split(".", 3)
    return f"blk.{layer}.{MODULES[module]}"


def token(step, sequence, place, vocabulary):
    return (step * 37 + sequence * 101 + place * place * 3 + place * 11) % vocabulary


def some(tensor):
    return [float(x) for x in tensor.detach().flatten()[:8]]


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(FIXTURES / MODEL, attn_implementation="eager")
    model.train()
    weights = {gguf_name(name): weight for name, weight in model.named_parameters()}
    matrices = [w for w in weights.values() if w.dim() > 1]
    vectors = [w for w in weights.values() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": OPTIONS["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}],
        lr=OPTIONS["learning_rate"],
        betas=(OPTIONS["beta1"], OPTIONS["beta2"]),
        eps=OPTIONS["epsilon"],
    )
    golden = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "model": MODEL,
        "sequences": SEQUENCES,
        "context": CONTEXT,
        "options": OPTIONS,
        "steps": [],
    }
    for step in range(STEPS):
        tokens = torch.tensor(
            [
                [token(step, s, t, model.config.vocab_size) for t in range(CONTEXT + 1)]
                for s in range(SEQUENCES)
            ]
        )
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        entry = {"loss": loss.item()}
        if step in (0, STEPS - 1):
            entry["gradient_norms"] = {name: w.grad.norm().item() for name, w in weights.items()}
            entry["gradients"] = {name: some(weights[name].grad) for name in VALUES}
        entry["gradient_norm"] = torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIONS["clip"]).item()
        optimizer.step()
        golden["steps"].append(entry)
    golden["weights"] = {name: some(weights[name]) for name in VALUES}
    folder = FIXTURES / "training"
    folder.mkdir(exist_ok=True)
    (folder / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()

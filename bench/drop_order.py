#!/usr/bin/env python3
"""Orders attention modules by the similarity of their input and output, as LLM-Drop does, and writes
bench/data/drop_order.json: the mean over tokens of the cosine of x and x + Attention(norm(x)), x the residual stream.

usage: PYTHON bench/drop_order.py TEXT [--windows 8]

PYTHON needs torch and transformers (scripts/check-transformers installs them into the cache and prints where); TEXT is
calibration text (WikiText-2's validation split for the recorded order). Needs scripts/build release first.
"""
import argparse
import json
import tempfile

import torch
import transformers

from common import REFOLD, ROOT, run

MODELS = ["smollm2-135m-instruct", "gemma3-270m"]


def similarities(folder, text, windows):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, attn_implementation="eager")
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
    layers = model.model.layers
    sums, streams = [0.0] * len(layers), {}

    def before(index):
        return lambda module, args, kwargs: streams.__setitem__(index, (args[0] if args else kwargs["hidden_states"]))

    def after(index, has_post_norm):
        def hook(module, args, output):
            added = output if has_post_norm else output[0]
            x = streams[index].double()
            sums[index] += torch.nn.functional.cosine_similarity(x, x + added.double(), dim=-1).sum().item()
        return hook

    for index, layer in enumerate(layers):
        layer.register_forward_pre_hook(before(index), with_kwargs=True)
        # Gemma normalizes the attention's output before it is added.
        post = hasattr(layer, "pre_feedforward_layernorm")
        (layer.post_attention_layernorm if post else layer.self_attn).register_forward_hook(after(index, post))
    with torch.no_grad():
        for window in range(windows):
            model(ids[None, 1024 * window : 1024 * (window + 1)])
    return [total / (1024 * windows) for total in sums]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--windows", type=int, default=8)
    options = parser.parse_args()
    text = open(options.text, encoding="utf-8").read()[:400_000]
    out = {}
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            run(REFOLD, "export", name, "--to", "hf", "-o", folder + "/model")
            values = similarities(folder + "/model", text, options.windows)
        out[name] = {"similarity": [round(value, 4) for value in values],
                     "order": sorted(range(len(values)), key=lambda layer: -values[layer])}
        print(name, out[name])
    (ROOT / "bench/data/drop_order.json").write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes tests/fixtures/sentence: files of sentence-transformers models over hf/bert_encoder, and what it makes of texts.

usage: make_sentence_fixtures.py tests/fixtures    (sentence-transformers 6.2.0, torch; seeded)

The variants of OLD have their files as sentence-transformers wrote them before version 6. Each variant is what a folder has besides the encoder and its tokenizer (tokenizers/wordpiece_bert_cased).
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

TEXTS = ["A text", "Another, longer text", "", "  spaces around  ", "The program is free software: you can redistribute it and modify it",
         "MIXED case Ünïcode 日本 😀", "one", "[MASK] and [SEP]"]


OLD = ["mean", "cls", "several", "dense"]
FLAGS = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
         "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken"}


def as_before(folder):
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rsplit(".", 1)[1]
        config = folder / module["path"] / "config.json"
        if module["type"].endswith("Pooling"):
            pooling = json.loads(config.read_text())
            modes = pooling["pooling_mode"]
            modes = modes if isinstance(modes, list) else [modes]
            config.write_text(json.dumps({"word_embedding_dimension": pooling["embedding_dimension"],
                                          **{"pooling_mode_" + flag: mode in modes for mode, flag in FLAGS.items()},
                                          "include_prompt": True}, indent=2))
        elif module["type"].endswith("Normalize"):
            config.unlink()
        elif module["type"].endswith("Dense"):
            dense = {k: v for k, v in json.loads(config.read_text()).items() if not k.startswith("module_")}
            config.write_text(json.dumps(dense))
    (folder / "modules.json").write_text(json.dumps(modules, indent=2))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16, "do_lower_case": False}, indent=2))


def encoder_folder(fixtures, folder):
    for source, names in [("hf/bert_encoder", ["config.json", "model.safetensors"]),
                          ("tokenizers/wordpiece_bert_cased", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])]:
        for name in names:
            shutil.copy(fixtures / source / name, folder)


def main():
    fixtures = Path(sys.argv[1])
    out = fixtures / "sentence"
    torch.manual_seed(20361)
    embeddings = {}
    with tempfile.TemporaryDirectory() as base:
        encoder_folder(fixtures, base)
        transformer = Transformer(base)
        width = transformer.get_word_embedding_dimension()

        def pooling(*modes):
            return Pooling(width, **{"pooling_mode_mean_tokens": False, **{"pooling_mode_" + mode: True for mode in modes}})

        variants = {
            "mean": [pooling("mean_tokens"), Normalize()],
            "cls": [pooling("cls_token")],
            "max": [pooling("max_tokens"), Normalize()],
            "last": [pooling("lasttoken")],
            "weighted": [pooling("weightedmean_tokens")],
            "sqrt": [pooling("mean_sqrt_len_tokens")],
            "several": [pooling("cls_token", "mean_tokens", "max_tokens")],
            "dense": [pooling("mean_tokens"), Dense(width, 24), Dense(24, 12, bias=False, activation_function=torch.nn.Identity()),
                      Normalize()],
            "prompt": [pooling("mean_tokens")],
        }
        for name, modules in variants.items():
            prompts = {"prompts": {"query": "The query: "}, "default_prompt_name": "query"} if name == "prompt" else {}
            model = SentenceTransformer(modules=[transformer, *modules], device="cpu", **prompts)
            with tempfile.TemporaryDirectory() as saved:
                model.save(saved, create_model_card=False)
                if name in OLD:
                    as_before(Path(saved))
                # Only what is read back counts.
                embeddings[name] = SentenceTransformer(saved, device="cpu").encode(TEXTS, batch_size=3).tolist()
                folder = out / name
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(saved, folder, ignore=lambda where, names: [
                    n for n in names if where == saved and not (n[0].isdigit() or n in (
                        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"))])
    (out / "golden.json").write_text(json.dumps({"texts": TEXTS, "embeddings": embeddings}))


main()

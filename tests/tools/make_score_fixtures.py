#!/usr/bin/env python3
"""Makes tests/fixtures/hf/bert_score, roberta_score and xlm_roberta_score: sequence classifiers with one label, and the scores of texts and
pairs.

usage: make_score_fixtures.py tests/fixtures [NAME...]    (transformers 4.57.6, torch; seeded)

Rows are those of hf/bert_encoder and hf/roberta. pairs.json has a query, documents and their scores, with the tokens of
tokenizers/wordpiece_bert_cased, bpe_roberta and unigram_xlm_roberta.
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.numpy import load_file, save_file

QUERY = "may I redistribute it?"
DOCUMENTS = ["The program is free software: you can redistribute it and modify it", "A text", "may I redistribute it?", ""]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "num_labels": 1,
         "initializer_range": 0.3}
KINDS = {
    "bert_score": ("bert_encoder", "wordpiece_bert_cased", transformers.BertConfig, transformers.BertForSequenceClassification,
                   {"vocab_size": 512, "max_position_embeddings": 128}),
    "roberta_score": ("roberta", "bpe_roberta", transformers.RobertaConfig, transformers.RobertaForSequenceClassification,
                      {"vocab_size": 416, "max_position_embeddings": 130, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "xlm_roberta_score": ("roberta", "unigram_xlm_roberta", transformers.XLMRobertaConfig, transformers.XLMRobertaForSequenceClassification,
                          {"vocab_size": 422, "max_position_embeddings": 130, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
}


def main():
    fixtures = Path(sys.argv[1])
    for name, (rows_of, tokenizer, config, kind, sizes) in KINDS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(20361)
        model = kind(config(**{**SIZES, **sizes})).eval()
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases and gains would be 0 and 1
                parameter.data += 0.1 * torch.randn_like(parameter)
        folder = fixtures / "hf" / name
        model.save_pretrained(folder)
        (folder / "golden.json").write_text((fixtures / "hf" / rows_of / "golden.json").read_text())
        given = load_file(fixtures / "hf" / rows_of / "golden.safetensors")
        golden = {}
        for row in (0, 2, 4, 5):
            inputs = {part: given[f"{part}.{row}"] for part in ("input_ids", "token_type_ids", "attention_mask")
                      if f"{part}.{row}" in given}
            golden.update({f"{part}.{row}": values for part, values in inputs.items()})
            with torch.no_grad():
                out = model(**{part: torch.tensor(values)[None] for part, values in inputs.items()}, output_hidden_states=True)
            golden[f"last_hidden_state.{row}"] = out.hidden_states[-1][0].numpy()
            golden[f"score.{row}"] = out.logits[0].numpy()
        save_file(golden, folder / "golden.safetensors")
        tokens = transformers.AutoTokenizer.from_pretrained(fixtures / "tokenizers" / tokenizer)
        with torch.no_grad():
            scores = [float(model(**tokens([QUERY], [document], return_tensors="pt")).logits[0, 0]) for document in DOCUMENTS]
        (folder / "pairs.json").write_text(json.dumps({"query": QUERY, "documents": DOCUMENTS, "scores": scores}, indent=1) + "\n")


main()

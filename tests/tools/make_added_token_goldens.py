#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizers/added_tokens.json: token ids of Hugging Face's tokenizers for added tokens of every
combination of flags, for each kind of vocabulary. Needs the package tokenizers.

usage: tests/tools/make_added_token_goldens.py
"""
import json
import pathlib
import random

from tokenizers import Tokenizer, __version__

FOLDER = pathlib.Path(__file__).parent.parent / "fixtures" / "tokenizers"
KINDS = ["wordpiece_bert", "wordpiece_bert_cased", "bpe_gpt2", "bpe_llama3", "spm_llama", "spm_gemma", "unigram_t5"]
CONTENTS = ["foo", "Foo", "<x>", "a b", "\u00e4", "\u00c9", "bar ", "##s", "\u00dcber", "[NEW]", "under_score"]
TEXTS = ["foo bar foobar Foo FOO xfoo foox foo.", "a b ab a bx", "  \u00e4 \u00c9 \u00e9 \u00c8 \u00fcber \u00dcber", "<x><x> x[NEW]y [new]",
         "##s s##s Foo,foo", " foo  <x>  Foo  ", "\u65e5\u672cfoo\u8a9e a b", "foo1 1foo under_score_ _foo"]
FLAGS = ["single_word", "lstrip", "rstrip", "normalized", "special"]


def main():
    choose = random.Random(1)
    cases = []
    for kind in KINDS:
        for _ in range(6):
            file = json.loads((FOLDER / kind / "tokenizer.json").read_text())
            vocab = file["model"]["vocab"]
            known = set(vocab) if isinstance(vocab, dict) else {token for token, _ in vocab}
            known |= {token["content"] for token in file["added_tokens"]}
            first = max([len(vocab)] + [token["id"] + 1 for token in file["added_tokens"]])
            contents = choose.sample([c for c in CONTENTS if c not in known], 6)
            added = [{"id": first + i, "content": c, **{flag: choose.random() < 0.4 for flag in FLAGS}}
                     for i, c in enumerate(contents)]
            file["added_tokens"] += added
            tokenizer = Tokenizer.from_str(json.dumps(file))
            cases.append({"vocabulary": kind, "added": added,
                          "encodings": [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in TEXTS]})
    out = {"tokenizers": __version__, "cases": cases}
    (FOLDER / "added_tokens.json").write_text(json.dumps(out, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

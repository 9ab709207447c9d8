#!/usr/bin/env python3
"""Copies tiny Hugging Face checkpoints with golden outputs into tests/fixtures/hf, leaving out what tests do not read.

usage: make_hf_fixtures.py SOURCE [DESTINATION] [--without NAME,NAME...]

SOURCE has one folder per model: config.json, model.safetensors (or shards with an index), golden.json and
golden.safetensors (input_ids.i, logits.i, greedy.logits, token_type_ids.i, attention_mask.i, last_hidden_state.i,
pooler_output.i), written by transformers in float32. Needs nothing but Python.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

KINDS = ("input_ids", "logits", "token_type_ids", "attention_mask", "last_hidden_state", "pooler_output")
ROWS = (0, 2, 4, 5)  # the longest, the prompt of the continuation, a single token, an encoder's padded row
KEEP = {f"{kind}.{row}" for kind in KINDS for row in ROWS} | {"greedy.logits"}


def read(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def trim(source, destination):
    header, data = read(source)
    out, body = {}, b""
    for name, entry in sorted(header.items()):
        if name not in KEEP:
            continue
        first, last = entry["data_offsets"]
        out[name] = {**entry, "data_offsets": [len(body), len(body) + last - first]}
        body += data[first:last]
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    destination.write_bytes(struct.pack("<Q", len(text)) + text + body)


def main():
    arguments, without = sys.argv[1:], []
    if "--without" in arguments:
        at = arguments.index("--without")
        without = arguments[at + 1].split(",")
        del arguments[at : at + 2]
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    source = Path(arguments[0])
    target = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).resolve().parents[1] / "fixtures" / "hf"
    for config in sorted(source.glob("*/config.json")):
        folder = config.parent
        if folder.name in without or not (folder / "golden.safetensors").exists():
            continue
        to = target / folder.name
        to.mkdir(parents=True, exist_ok=True)
        for file in [config, *folder.glob("model*.safetensors*")]:
            shutil.copyfile(file, to / file.name)
        golden = json.loads((folder / "golden.json").read_text())
        (to / "golden.json").write_text(json.dumps({k: golden[k] for k in ("rows", "greedy") if k in golden}) + "\n")
        trim(folder / "golden.safetensors", to / "golden.safetensors")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes tests/fixtures/torch/weights.bin, a small state dict as PyTorch saves it, and weights.json, what is in it.

usage: tests/tools/make_torch_fixture.py FOLDER    (with torch installed; made by 2.11.0)
"""
import collections
import json
import pathlib
import sys

import torch

folder = pathlib.Path(sys.argv[1])
base = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 8
state = collections.OrderedDict(
    float=base, rows=base[1:], half=base.half()[:2], bfloat=base.bfloat16(), double=base.double()[0], long=torch.tensor([1, -2, 3]),
    scalar=torch.tensor(2.5), empty=torch.zeros(0, 4), parameter=torch.nn.Parameter(torch.tensor([0.5, -0.5])),
    flags=torch.tensor([True, False]))
state["name with.dots"] = torch.tensor([7], dtype=torch.int32)
state._metadata = collections.OrderedDict({"": {"version": 1}, "layer": {"version": 2}})
torch.save(state, folder / "weights.bin")
torch.save({"model": dict(state), "epoch": 3}, folder / "checkpoint.bin")
torch.save({"columns": base.T}, folder / "strides.bin")
torch.save({"float": base}, folder / "old.bin", _use_new_zipfile_serialization=False)
(folder / "weights.json").write_text(json.dumps(
    {name: {"dtype": str(t.dtype), "shape": list(t.shape), "values": t.detach().double().flatten().tolist()} for name, t in state.items()},
    indent=1) + "\n")

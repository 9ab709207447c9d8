"""Models of tests/fixtures with what independent programs make of them, and the program `refold`."""

import importlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FIXTURES = os.path.join(REPOSITORY, "tests", "fixtures")
LLAMA = os.path.join(FIXTURES, "llama_gqa", "model.gguf")
TEXT = os.path.join(REPOSITORY, "bench", "data", "wikitext-2-test-excerpt.txt")
CALIBRATION = os.path.join(REPOSITORY, "bench", "data", "wikitext-2-valid-excerpt.txt")
DTYPES = {"F32": np.float32, "I64": np.int64, "I32": np.int32}


def golden(*folder):
    """golden.json of a fixture, and the arrays of golden.safetensors by their names."""
    path = os.path.join(FIXTURES, *folder, "golden")
    with open(path + ".json") as file:
        facts = json.load(file)
    with open(path + ".safetensors", "rb") as file:
        data = file.read()
    (size,) = struct.unpack("<Q", data[:8])
    arrays = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[8 + size + begin : 8 + size + end], DTYPES[entry["dtype"]])
            arrays[name] = values.reshape(entry["shape"])
    return facts, arrays


def program(*arguments):
    """What the command line program prints as JSON."""
    command = [sys.executable, "-I", "-m", "refold", *arguments, "--json"]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    )


class FolderTest(unittest.TestCase):
    """With a folder for files."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="refold-python-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name):
        return os.path.join(self.folder, name)


def needs(module):
    """The module of an optional package; None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None

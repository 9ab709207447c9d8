import contextlib
import io
import os
import re
import unittest

import numpy as np
import refold
from fixtures import CALIBRATION, LLAMA, REPOSITORY, FolderTest, needs

SHARED = [{"method": "direct_share", "ratio": 0.5}]


def examples():
    """The blocks of Python of docs/python.md, by the heading they are under."""
    with open(os.path.join(REPOSITORY, "docs", "python.md"), encoding="utf-8") as file:
        sections = re.split(r"^#+ (.*)$", file.read(), flags=re.MULTILINE)[1:]
    found = {}
    for heading, text in zip(sections[::2], sections[1::2]):
        block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        if block:
            found[heading] = block.group(1)
    return found


class DocumentationTest(FolderTest):
    def run_example(self, heading, names, **variables):
        """With paths in place of `names`. Returns what it prints."""
        code = examples()[heading]
        for name, path in names.items():
            self.assertIn(name, code)
            code = code.replace(f'"{name}"', repr(path))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(code, "docs/python.md", "exec"), {"refold": refold, **variables})
        return printed.getvalue()

    def test_the_first_example_runs(self):
        self.assertLessEqual(len(examples()["refold in Python"].strip().splitlines()), 12)
        output = self.path("small.gguf")
        names = {"smollm2-135m-instruct": LLAMA, "small.gguf": output, "wiki.txt": CALIBRATION}
        printed = self.run_example("refold in Python", names)
        self.assertRegex(printed, r"-[0-9.]+ \([0-9]+, 448\)\n[0-9]+ -> [0-9]+\n$")
        self.assertTrue(os.path.exists(output))

    def test_weights_and_topology(self):
        small, edited = self.path("small.gguf"), self.path("edited.gguf")
        refold.compress(LLAMA, SHARED, small, threads=1)
        model = refold.open(small)
        shared = model.layers[3]["attn.q"].runs[0].tensor
        names = {"small.gguf": small, "edited.gguf": edited, "blk.2.attn_q.weight": shared}
        n_embd, n_ff = model.config["n_embd"], model.config["n_ff"]
        self.run_example("Weights and topology", names, u=np.ones((n_embd, 2)), v=np.ones((2, n_ff)))
        self.assertIsInstance(refold.open(edited).layers[3]["ffn.down"], refold.LowRank)

    def test_methods_in_python(self):
        output = self.path("small.gguf")
        names = {"smollm2-135m-instruct": LLAMA, "small.gguf": output, "wiki.txt": CALIBRATION}
        self.run_example("Methods in Python", names)
        self.assertIn("scale_output", refold.open(output).provenance["recipe"])

    @unittest.skipUnless(needs("torch"), "torch is not installed")
    def test_pytorch(self):
        import torch

        small, trained = self.path("small.gguf"), self.path("trained.gguf")
        refold.compress(LLAMA, SHARED, small, threads=1)
        names = {"small.gguf": small, "trained.gguf": trained}
        self.run_example("PyTorch", names, tokens=torch.tensor([[5, 6, 7, 8]]))
        self.assertTrue(refold.inspect(trained)["shares"])


if __name__ == "__main__":
    unittest.main()

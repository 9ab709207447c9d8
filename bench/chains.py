"""Models made by one step after another. Every intermediate model is kept, with its cost and its perplexities."""
import hashlib
import json
import sys

from common import REFOLD, processor_seconds, run
from perplexities import Perplexities

REFIT = ("refit", {})
LAYERWISE = ("train", {"objective": "layerwise", "epochs": 2, "batch": 1})


def relax(loops, rank):
    return ("relax", {"loops": loops, "init": "average", "norms": "keep", "rank": rank})


def add_training_arguments(parser):
    parser.add_argument("--train-tokens", type=int, default=262144)
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16", help="of products; which one is faster depends on the processor")
    parser.add_argument("--train-batch", type=int, default=4, help="sequences of a step")
    parser.set_defaults(train_context=512)


class Chains(Perplexities):
    """Programs reuse each other's models."""

    def __init__(self, options, source=None):
        super().__init__(options, "chains", source)

    def train(self, **options):
        return ("train", {"data": self.o.data, "tokens": self.o.train_tokens, "context": self.o.train_context, "batch": self.o.train_batch, "micro_batch": self.o.train_batch,
                          "precision": self.o.precision, "warmup": 0.1, "held_out": 0.01, **options})

    def distill(self):
        """From the dense model, all weights."""
        return self.train(objective="distill", divergence="fkl", learning_rate="2e-4")

    def made(self, steps):
        """Applies the steps to the dense model, starting from the longest existing chain. Returns the path of the model and a
        dictionary: perplexities, parameters, seconds of one core for the steps that were run, and losses on held-out text of
        the last training. A step is (method, options), or (method, options, tokens) if its calibration tokens are not --tokens."""
        path, key = self.file(steps), self.step_key(steps)
        if not path.exists():
            self.measured.pop(key, None)

        def make():
            done = next((n for n in range(len(steps) - 1, 0, -1) if self.step_key(steps[:n]) in self.measured and self.file(steps[:n]).exists()), 0)
            before, more = (self.file(steps[:done]), ["--original", self.source]) if done else (self.source, [])
            start = processor_seconds()
            tokens = max((step[2] for step in steps[done:] if len(step) > 2), default=self.o.tokens)
            self.compress([step[:2] for step in steps[done:]], tokens, *more, source=before, path=path)
            seconds = processor_seconds() - start
            cost = run(REFOLD, "inspect", path, "--json", parse=True)["accounting"]
            trained = any(step[0] == "train" for step in steps[done:])
            return {"perplexities": [r["perplexity"] for r in self.perplexities(path)], "parameters": cost["model"]["parameters"],
                    "seconds": seconds, "losses": self.held_out(path) if trained else []}

        result = self.once(key, make)
        print(steps, path, result, file=sys.stderr, flush=True)
        return path, result

    def step_key(self, steps):
        return self.key("steps", steps, self.o.tokens, self.o.calib)

    def file(self, steps):
        return self.kept.with_suffix(f".{hashlib.sha256(self.step_key(steps).encode()).hexdigest()[:12]}.gguf")

    @staticmethod
    def held_out(path):
        """Held-out losses of the last training of a model; empty if it was trained layer by layer."""
        files = sorted(path.with_suffix(".train").glob("step-*/metrics.jsonl"), key=lambda file: file.stat().st_mtime)
        lines = files[-1].read_text().splitlines() if files else []
        return [line["held_out_loss"] for line in map(json.loads, lines) if line.get("held_out_loss") is not None]

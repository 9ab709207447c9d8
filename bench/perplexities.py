"""Shared by the benchmarks of quality: models made by steps, and their perplexities on three kinds of text."""
import json
import pathlib
import sys
import time

from common import REFOLD, ROOT, WORK, calib_options, compress, machine, perplexity, requantized, run, today

LAYERS = {"smollm2-135m-instruct": 30, "gemma3-270m": 18}
BLOCKS = {"smollm2-135m-instruct": "18-21,22-25,26-29", "gemma3-270m": "10-13,14-17"}  # superblocks of the top half


def add_arguments(parser):
    for name in ("calib", "text", "book", "other"):
        parser.add_argument(name)
    parser.add_argument("--model", default="smollm2-135m-instruct", choices=list(LAYERS))
    parser.add_argument("--tokens", type=int, default=16384, help="of calibration")
    parser.add_argument("--windows", default="4")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--output", default=str(ROOT / "docs/quality.md"))


class Perplexities:
    """Measures everything once: `kept` has the results of former runs of the same program on the same texts, and of other
    programs that run at the same time."""

    def __init__(self, options, name, source=None):
        self.o = options
        self.source = source or requantized(options.model, "f16")
        self.path = WORK / f"{name}-{options.model}-{options.only.replace(',', '-')}.gguf"
        self.kept = WORK / f"{name}-{options.model}.json"
        self.measured = self.read_kept()
        self.texts = {"text": pathlib.Path(options.text), "book": self.half(options.book), "other": self.half(options.other)}

    def read_kept(self):
        return json.loads(self.kept.read_text()) if self.kept.exists() else {}

    def once(self, key, make):
        """The result of `make`, or the one kept from a former run."""
        if key not in self.measured:
            self.measured[key] = make()
            self.measured = {**self.read_kept(), **self.measured}
            self.kept.write_text(json.dumps(self.measured))
        return self.measured[key]

    @staticmethod
    def half(name):
        """The second half of a text, whole lines, as a file of its own."""
        path = WORK / f"half-{pathlib.Path(name).stem}.txt"
        lines = pathlib.Path(name).read_text(errors="replace").splitlines(keepends=True)
        path.write_text("".join(lines[len(lines) // 2 :]))
        return path

    def key(self, *parts):
        return json.dumps([self.o.model, *parts, self.o.windows, self.o.text, self.o.book, self.o.other, REFOLD.stat().st_mtime])

    def perplexities(self, path, *options):
        return [perplexity(path, text, self.o.windows, "--f32", "--threads", self.o.threads, *options)
                for text in self.texts.values()]

    def dense(self):
        return [result["perplexity"] for result in self.perplexities(self.source)]

    def compress(self, steps, tokens, *more, source=None, path=None):
        """Writes `path` (default: self.path); returns the output of `compress --json` and the seconds."""
        calibrated = any(method in ("refit", "llmdrop", "exit_map", "narrow", "low_rank", "correct", "refine")
                         or (method == "quantize" and options.get("rounding") != "nearest") or options.get("compensation", "none") not in ("none", "zero")
                         or options.get("objective") == "layerwise" or options.get("metric") == "output"
                         or options.get("align") == "symmetries" or options.get("select") == "sensitivity" for method, options in steps)
        calib = calib_options(self.o.calib)
        calib = [*calib, "--calib-tokens", str(tokens)] if calibrated else []
        start = time.monotonic()
        result = compress(source or self.source, path or self.path, steps, "--threads", self.o.threads, *calib, *more)
        return result, time.monotonic() - start

    def measure(self, steps, tokens, path=None):
        """Perplexities of the three texts, the accounting of `inspect`, and the seconds of compression. `path` (default: self.path)
        has the model after that, if it was made now."""
        path = path or self.path

        def make():
            _, seconds = self.compress(steps, tokens, path=path)
            cost = run(REFOLD, "inspect", path, "--json", parse=True)["accounting"]
            return [result["perplexity"] for result in self.perplexities(path)], cost, seconds

        values, cost, seconds = self.once(self.key(steps, tokens, self.o.calib), make)
        print(steps, values, f"{seconds:.0f} s", file=sys.stderr, flush=True)
        return values, cost, seconds

    def intro(self):
        text, book, other = (pathlib.Path(name).stem for name in (self.o.text, self.o.book, self.o.other))
        calib = ", ".join(f"`{pathlib.Path(name).stem}`" for name in self.o.calib.split(","))
        return (f"on {today()}, {machine()}, {self.o.threads} threads; {self.o.model} in F16, run in float32, "
                f"{self.o.windows} windows of 1024 tokens each of WikiText-2 (`{text}`), a book (`{book}`) and another kind "
                f"of text (`{other}`); solved on {calib}")

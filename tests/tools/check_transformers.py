"""Compares refold with transformers: exported models, tokenizers, perplexity and sentence embeddings, all in float32.

Run by scripts/check-transformers, which finds or makes a Python with torch and transformers.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
warnings.filterwarnings("ignore")

import numpy
import torch
import transformers
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures/hf"
GOLDEN = ROOT / "tests/fixtures/minilm/golden.json"
TEXT = ROOT / "bench/data/wikitext-2-test-excerpt.txt"
PARTS = ("smollm2", "shared", "gemma3", "fixtures", "minilm")
UNKNOWN_TO_TRANSFORMERS = ("baichuan",)
LOGITS_LIMIT = 1e-3  # largest difference over the standard deviation of the logits
GOLDEN_LIMIT = 1e-4
PERPLEXITY_LIMIT = 1e-4  # relative
EMBEDDING_LIMIT = 1e-4
WINDOW, WINDOWS = 768, 2  # of perplexity; wider than the sliding window of Gemma 3

TEXTS = (
    "Hello, world! It's 2024; they'll've paid $1,234.56.",
    "  leading and trailing spaces   ",
    "tabs\tand\nnew lines\n\n\r\nand   runs    of spaces",
    "def f(x):\n    return [i ** 2 for i in range(10)]  # squares\n",
    "Ünïcödé, naïve café, ßtraße, Ελληνικά, Русский, עברית, العربية, हिन्दी",
    "日本語のテキスト、中文文本，한국어",
    "emoji 🙂👩‍👩‍👧‍👦🇩🇪 and combining e\u0301 a\u030a",
    "1234567890 12 345 6789 3.14159 1e-5",
    "<|im_start|>user\nspelled <bos> special </s> tokens<|im_end|><end_of_turn>\n",
    "ﬁ ligature, ①, ½, full width ＡＢＣ, zero\u200bwidth, nb\u00a0space, soft\u00adhyphen",
)
SENTENCES = (
    "That is a happy person.",
    "That is a happy dog.",
    "Today is a sunny day, and the weather forecast promises more of it for the rest of the week.",
    "Sharing attention heads between layers makes a transformer smaller.",
    "Ein naïver Café-Besucher zahlt 3,50 € für einen Espresso!",
    "東京 is the capital of Japan; unaffordableness isn't.",
)


class Report:
    def __init__(self):
        self.rows, self.skipped = [], []

    def add(self, model, what, value, limit, note=""):
        row = {"model": model, "check": what, "value": value, "limit": limit, "ok": bool(value <= limit), "note": note}
        self.rows.append(row)
        print(f"{'ok  ' if row['ok'] else 'OFF '} {model}: {what}: {value:.3g} (limit {limit:g}) {note}", file=sys.stderr, flush=True)

    def skip(self, model, why):
        self.skipped.append({"model": model, "why": why})
        print(f"skip {model}: {why}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def guarded(self, model):
        """What fails outright is a result, too, and not the end of the other checks."""
        try:
            yield
        except Exception as error:  # pylint: disable=broad-except
            self.add(model, "runs", 1, 0, f"{type(error).__name__}: {str(error).strip()[:400]}")

    def ok(self):
        return all(row["ok"] for row in self.rows)

    def table(self):
        lines = ["| model | check | value | limit | |", "|---|---|---|---|---|"]
        for row in self.rows:
            state = "ok" if row["ok"] else "OFF"
            lines.append(f"| {row['model']} | {row['check']} | {row['value']:.3g} | {row['limit']:g} | {state} {row['note']} |")
        lines += [f"| {row['model']} | - | - | - | skipped: {row['why']} |" for row in self.skipped]
        return "\n".join(lines)


class Refold:
    def __init__(self, binary):
        self.binary = binary

    def text(self, *words):
        done = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"refold {' '.join(map(str, words))[:200]}: {done.stderr.strip()[-600:]}")
        return done.stdout

    def json(self, *words):
        return json.loads(self.text(*words, "--json", "--quiet"))

    def is_pulled(self, name):
        return subprocess.run([self.binary, "inspect", name], capture_output=True).returncode == 0

    def pull(self, name):
        return self.json("pull", name)["path"]

    def export(self, model, form, output):
        self.json("export", model, "--to", form, "-o", output, "--overwrite")
        return output

    def ids(self, model, text):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            return self.json("tokenize", model, "--file", file.name, "--special")["ids"]

    def outputs(self, model, ids, token_types=(), mask=()):
        with tempfile.TemporaryDirectory() as folder:
            words = ["logits", model, "--tokens", comma(ids), "--f32", "-o", f"{folder}/out.safetensors"]
            if len(token_types):
                words += ["--token-types", comma(token_types)]
            if len(mask):
                words += ["--mask", comma(mask)]
            self.json(*words)
            return load_file(f"{folder}/out.safetensors")


def comma(ids):
    return ",".join(str(int(i)) for i in ids)


def auto_class(folder):
    architecture = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"][0]
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return transformers.AutoModelForCausalLM
    if architecture.endswith("ForSequenceClassification"):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForMaskedLM if architecture.endswith("ForMaskedLM") else transformers.AutoModel


def load_model(folder, kind=None):
    """A folder as transformers' own class for it, in float32. The weights must be those of the file, but for heads: a
    class may have others than the checkpoint."""
    kind = kind or auto_class(folder)
    heads = ("cls.", "lm_head.", "pooler.", "classifier.") if kind is transformers.AutoModel else ("pooler.",)
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = [name for name in map(str, info[what]) if not any(head in name for head in heads)]
        if names:
            raise RuntimeError(f"{what}: {sorted(names)[:5]}")
    return model.eval()


@torch.no_grad()
def forward(model, ids, **more):
    more = {key: torch.tensor([[int(i) for i in value]]) for key, value in more.items() if len(value)}
    return model(input_ids=torch.tensor([[int(i) for i in ids]]), **more)


def difference(a, b):
    """Largest difference over the standard deviation of `b`, or over its size where it is one number."""
    spread = numpy.std(b) if b.size > 1 else numpy.abs(b).max()
    return float(numpy.abs(a - b).max() / max(float(spread), 1e-9))


def same_order(a, b):
    return f"{100 * float((a.argmax(-1) == b.argmax(-1)).mean()):.1f} % equal greedy tokens"


def compare_tokenizers(report, refold, name, model, tokenizer, texts):
    wrong = [text for text in texts if refold.ids(model, text) != tokenizer(text)["input_ids"]]
    report.add(name, f"tokenizer, texts that differ of {len(texts)}", len(wrong), 0, "".join(f" {text[:60]!r}" for text in wrong[:3]))


def windows_perplexity(model, ids):
    nll, scored = 0.0, 0
    for first in range(0, WINDOW * WINDOWS, WINDOW):
        window = ids[first : first + WINDOW]
        logits = forward(model, window).logits[0, :-1]
        for row, target in zip(logits, window[1:]):  # row by row: in double precision a vocabulary is large
            nll -= float(torch.log_softmax(row.double(), -1)[target])
        scored += WINDOW - 1
    return math.exp(nll / scored)


def check_causal(report, refold, name, source, folder, n_tokens=300):
    """A decoder in refold and, exported, in transformers."""
    exported = refold.export(source, "hf", folder / "hf")
    model = load_model(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    text = TEXT.read_text(encoding="utf-8")
    compare_tokenizers(report, refold, name, source, tokenizer, [*TEXTS, text])
    # `eval ppl` takes a special token that is spelled in the text as plain text, transformers does not.
    plain = folder / "plain.txt"
    plain.write_text(text.replace("<unk>", "unknown"), encoding="utf-8")
    ids = tokenizer(plain.read_text(encoding="utf-8"))["input_ids"]
    ours = refold.outputs(source, ids[:n_tokens])["logits"]
    theirs = forward(model, ids[:n_tokens]).logits[0].numpy()
    report.add(name, f"logits of {n_tokens} tokens, difference / deviation", difference(ours, theirs), LOGITS_LIMIT, same_order(ours, theirs))
    mine = refold.json("eval", "ppl", source, "--text", plain, "--context", WINDOW, "--max-windows", WINDOWS, "--f32")["perplexity"]
    other = windows_perplexity(model, ids)
    report.add(name, f"perplexity of {WINDOWS} x {WINDOW} tokens, relative", abs(mine / other - 1), PERPLEXITY_LIMIT, f"{mine:.5f} / {other:.5f}")


def check_smollm2(report, refold, work):
    check_causal(report, refold, "smollm2-135m-instruct", refold.pull("smollm2-135m-instruct"), work)


def check_shared(report, refold, work):
    shared = work / "shared.gguf"
    refold.json("compress", refold.pull("smollm2-135m-instruct"), "-o", shared, "--overwrite", "--method", "direct_share", "--set", "ratio=0.2")
    check_causal(report, refold, "smollm2-135m-instruct, 20 % shared", shared, work)


def check_gemma3(report, refold, work):
    check_causal(report, refold, "gemma3-270m", refold.pull("gemma3-270m"), work)


def golden_rows(folder):
    """Row number -> its tensors."""
    rows = {}
    for name, tensor in load_file(folder / "golden.safetensors").items():
        kind, _, row = name.rpartition(".")
        if row.isdigit():
            rows.setdefault(int(row), {})[kind] = tensor
    return rows


def check_fixture(report, refold, folder, work):
    name = "fixture " + folder.name
    native = refold.export(folder, "native", work / "native.gguf")
    exported = refold.export(native, "hf", work / "hf")
    known = not folder.name.startswith(UNKNOWN_TO_TRANSFORMERS)
    kinds = {auto_class(exported), *([] if auto_class(exported) is transformers.AutoModelForCausalLM else [transformers.AutoModel])}
    models = [load_model(exported, kind) for kind in kinds] if known else []
    worst = {}
    for row in golden_rows(folder).values():
        more = {key: row[key] for key in ("token_type_ids", "attention_mask") if key in row}
        shown = row["attention_mask"].astype(bool) if "attention_mask" in row else slice(None)
        outputs = [("refold", refold.outputs(exported, row["input_ids"], *(more.get(key, ()) for key in ("token_type_ids", "attention_mask"))))]
        for model in models:
            out = forward(model, row["input_ids"], **more)
            theirs = {key: value[0].numpy() for key, value in out.items() if isinstance(value, torch.Tensor)}
            outputs.append(("transformers", {"score": theirs["logits"]} if "score" in row and "logits" in theirs else theirs))
        for who, got in outputs:
            for key in ("logits", "last_hidden_state", "pooler_output", "score"):
                if key in row and key in got:
                    rows = slice(None) if key in ("pooler_output", "score") else shown
                    worst[who, key] = max(worst.get((who, key), 0), difference(got[key][rows], row[key][rows]))
    for (who, key), error in worst.items():
        report.add(name, f"exported, {key} in {who} against golden", error, GOLDEN_LIMIT)
    if not known:
        report.skip(name, "transformers has no such class; compared in refold only")


def check_fixtures(report, refold, work):
    for folder in sorted(FIXTURES.iterdir()):
        with report.guarded("fixture " + folder.name):
            check_fixture(report, refold, folder, work)


def embedding(last_hidden_state, mask):
    """Mean over the tokens, of length 1: sentence-transformers' pooling for this model."""
    mask = numpy.asarray(mask, dtype=numpy.float64)[:, None]
    mean = (last_hidden_state.astype(numpy.float64) * mask).sum(0) / mask.sum()
    return mean / numpy.linalg.norm(mean)


def check_minilm(report, refold, work, write_golden=False):
    name = "minilm-l6"
    source = refold.pull(name)
    # Through a native file and back, so that the export is what transformers reads.
    exported = refold.export(source, "hf", work / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    compare_tokenizers(report, refold, name, source, tokenizer, [*TEXTS, *SENTENCES])
    batch = tokenizer(list(SENTENCES), padding=True)
    original, again = load_model(source), load_model(exported)
    embeddings, worst, worst_export = [], 0.0, 0.0
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"]):
        theirs, back = (embedding(forward(m, ids, attention_mask=mask).last_hidden_state[0].numpy(), mask) for m in (original, again))
        ours = embedding(refold.outputs(source, ids, mask=mask)["last_hidden_state"], mask)
        worst = max(worst, float(numpy.abs(ours - theirs).max()))
        worst_export = max(worst_export, float(numpy.abs(back - theirs).max()))
        embeddings.append(theirs)
    report.add(name, f"embeddings of {len(SENTENCES)} padded sentences", worst, EMBEDDING_LIMIT)
    report.add(name, "embeddings of the exported model, both in transformers", worst_export, 0)
    golden = {
        "sentences": list(SENTENCES),
        "ids": [tokenizer(sentence)["input_ids"] for sentence in SENTENCES],
        "embeddings": [[round(float(value), 7) for value in row] for row in embeddings],
    }
    if write_golden:
        lines = ",\n".join(f'"{key}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for key, rows in golden.items())
        GOLDEN.write_text("{\n" + lines + "\n}\n")
    stored = json.loads(GOLDEN.read_text())
    same = stored["sentences"] == golden["sentences"] and stored["ids"] == golden["ids"]
    report.add(name, "golden.json, sentences and ids", 0 if same else 1, 0)
    report.add(name, "golden.json, embeddings", float(numpy.abs(numpy.array(stored["embeddings"]) - numpy.array(embeddings)).max()), 1e-5)


MODELS = {"smollm2": "smollm2-135m-instruct", "shared": "smollm2-135m-instruct", "gemma3": "gemma3-270m", "minilm": "minilm-l6"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refold", required=True, help="the program")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, of: " + ", ".join(PARTS))
    parser.add_argument("--offline", action="store_true", help="leave out models that are not in the cache")
    parser.add_argument("--write-golden", action="store_true", help="write tests/fixtures/minilm/golden.json anew")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}; known: {', '.join(PARTS)}")
    report, refold = Report(), Refold(options.refold)
    checks = {"smollm2": check_smollm2, "shared": check_shared, "gemma3": check_gemma3, "fixtures": check_fixtures,
              "minilm": lambda *words: check_minilm(*words, options.write_golden)}
    for part in parts:
        if options.offline and part in MODELS and not refold.is_pulled(MODELS[part]):
            report.skip(part, f"{MODELS[part]} is not in the cache")
            continue
        with tempfile.TemporaryDirectory(prefix="refold-check-") as work, report.guarded(part):
            checks[part](report, refold, pathlib.Path(work))
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    if options.json:
        print(json.dumps({"ok": report.ok(), **versions, "checks": report.rows, "skipped": report.skipped}, indent=1))
    else:
        print(f"torch {versions['torch']}, transformers {versions['transformers']}, float32\n\n{report.table()}")
    if not report.rows:
        sys.exit(77)
    sys.exit(0 if report.ok() else 1)


if __name__ == "__main__":
    main()

"""Shared by the benchmark scripts. Python's standard library only."""
import contextlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
REFOLD = BIN / "refold"
WORK = ROOT / "build/bench"
CACHE = pathlib.Path(os.environ.get("REFOLD_CACHE") or pathlib.Path(
    os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "refold")


def run(*command, parse=False, **environment):
    """The output of a command, parsed as JSON if `parse`; `environment`: variables that it gets besides ours."""
    print("+", *command, file=sys.stderr, flush=True)
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True, text=True,
                            env={**os.environ, **environment})
    return json.loads(result.stdout) if parse else result.stdout


@contextlib.contextmanager
def served(model, *options, **environment):
    """The event "listening" of a `refold serve` that runs meanwhile; `environment`: variables that it gets besides ours."""
    program = os.environ.get("REFOLD", REFOLD)
    server = subprocess.Popen([str(part) for part in (program, "serve", model, "--port", "0", "--json", "--quiet", *options)],
                              stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        yield json.loads(server.stdout.readline())
    finally:
        server.terminate()
        server.wait()
    if server.returncode != 0:
        sys.exit(f"the server ended with {server.returncode}")


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def calib_options(texts):
    """Options for calibration texts, which are separated by commas."""
    return [word for text in texts.split(",") for word in ("--calib", text)]


def requantized(name, kind):
    """A model of the catalogue in another type, made by libllama once."""
    WORK.mkdir(parents=True, exist_ok=True)
    source = run(REFOLD, "pull", name).splitlines()[-1]
    path = WORK / f"{name}-{kind}.gguf"
    if not path.exists():
        f32 = WORK / f"{name}-f32.gguf"
        if not f32.exists():
            run(BIN / "refold_requantize", source, f32, "f32")
        if kind != "f32":
            run(BIN / "refold_requantize", f32, path, kind)
    return path


def compress(model, output, steps, *more):
    """Applies steps [(method, {option: value})] to a model; returns the output of `compress --json`."""
    recipe = pathlib.Path(str(output) + ".steps.yaml")
    lines = ["steps:"]
    for method, options in steps:
        lines.append(f"  - method: {method}")
        lines += [f"    {name}: {json.dumps(value)}" for name, value in options.items()]
    recipe.write_text("\n".join(lines) + "\n")
    return run(REFOLD, "compress", model, "-o", output, "--overwrite", "--quiet", "--json", "--recipe", recipe, *more,
               parse=True)


MODULES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
           "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def write_adapter(folder, shapes, rank, seed):
    """Random factors in a folder for PEFT; `shapes`: adapted_shapes()."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))
    chance = random.Random(seed)
    pool = b"".join(struct.pack("<f", chance.gauss(0, 0.02))[2:] for _ in range(4099))
    header, data = {}, []
    at = 0
    for name, (columns, rows) in shapes.items():
        for factor, shape in (("A", [rank, columns]), ("B", [rows, rank])):
            size = 2 * shape[0] * shape[1]
            data.append((pool * (size // len(pool) + 1))[:size])
            header[f"base_model.model.{name}.lora_{factor}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def adapted_shapes(model):
    """(columns, rows) of the matrices of attention and FFN, by their names in PEFT."""
    shapes = {}
    for tensor in run(REFOLD, "inspect", model, "--json", parse=True)["tensors"]:
        parts = tensor["name"].split(".")
        if parts[0] == "blk" and parts[2] in MODULES and parts[3] == "weight":
            shapes[f"model.layers.{parts[1]}.{MODULES[parts[2]]}"] = tensor["shape"]
    return shapes


def prompt_flops(cost, sizes, tokens):
    """FLOPs of the products of a prompt, causal; the output is computed for its last token only. From the accounting and the
    hyper-parameters of `inspect`."""
    output = 2 * sizes["n_vocab"] * sizes["n_embd"]
    return (tokens * (cost["flops_per_token"] - output) + output
            + cost["attention_flops_per_context_token"] * tokens * (tokens + 1) / 2)


def install(folder, *packages):
    """Installs packages with pip into a virtual environment."""
    run("python3", "-m", "pip", "--python", folder / "bin/python", "install", "--quiet", "--no-cache-dir", "--no-compile",
        "--no-input", "--disable-pip-version-check", *packages)


def environment(packages, *options, base="python3", prepare=None):
    """The Python of a virtual environment in the cache with these packages, named after the first one; created if it
    does not exist. `options` are those of venv; `prepare` is called with the new folder before packages are installed."""
    folder = CACHE / ("python-" + packages[0].replace("==", "-"))
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(base, "-m", "venv", "--without-pip", *options, folder)
        if prepare:
            prepare(folder)
        install(folder, *packages)
        (folder / "complete").touch()
    return folder / "bin/python"


def processor_seconds():
    """Processor time of all programs run so far, which other work on the machine does not change."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def perplexity(model, text, windows, *options):
    return run(REFOLD, "eval", "ppl", model, "--text", text, "--max-windows", windows, "--quiet", "--json", *options,
               parse=True)


def compare(model, baseline, *options):
    """The output of `bench --json` for two models in one process. Ratios are geometric means of both orders of loading,
    which differ by a few percent."""
    there = run(REFOLD, "bench", model, "--baseline", baseline, "--json", "--quiet", *options, parse=True)
    back = run(REFOLD, "bench", baseline, "--baseline", model, "--json", "--quiet", *options, parse=True)
    for phase in ["prefill", "decode"]:
        there[phase]["ratio"] = (there[phase]["ratio"] / back[phase]["ratio"]) ** 0.5
    return there


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join("---" for _ in header) + "|"]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def mib(value):
    return f"{value / 2**20:.1f}"


def machine():
    names = re.findall(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return f"{names[0] if names else 'unknown CPU'}, {os.cpu_count()} cores seen"


def today():
    return time.strftime("%Y-%m-%d")


def write_section(path, name, text):
    """Replaces the part of a document between `<!-- NAME -->` and `<!-- /NAME -->`, or appends it."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    path = pathlib.Path(path)
    old = path.read_text() if path.exists() else ""
    section = f"{begin}\n{text.strip()}\n{end}"
    if begin in old:
        new = old[: old.index(begin)] + section + old[old.index(end) + len(end) :]
    else:
        new = (old.rstrip() + "\n\n" if old else "") + section + "\n"
    path.write_text(new)
    print(text)

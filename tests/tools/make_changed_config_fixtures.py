#!/usr/bin/env python3
"""Makes tests/fixtures/changed_configs: what transformers computes from the checkpoints of tests/fixtures/hf after one change each.

usage: make_changed_config_fixtures.py tests/fixtures OLDER_PYTHON [NAME...]    (about an hour on one core; NAME: only these fixtures)

Run by a Python with transformers 5.24.0, safetensors and torch; OLDER_PYTHON has transformers 4.57.6. The changes are those of
config_changes.py. NAME.jsonl has the fixture's token row, the other fields of its class and transformers' answer in its first line, then one change a line, with
`answer` (transformers 5) and, where it differs and the change is one that 4 knows, `older`:
- numbers: some of the logits (or hidden states, or the score), see sample();
- "same": as without the change;
- "fails": transformers raises an error;
- "random": it reports weights that it had to make up, or that do not fit.
"""
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.update({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "critical", "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

NEWER = int(transformers.__version__.split(".")[0]) >= 5
TOKENS = 44  # more than every window and every `original_max_position_embeddings`
REMOTE = ("baichuan_7b", "baichuan_13b", "ouro")  # transformers has no class for them


def token_row(vocabulary):
    return [3 + (7 * i * i + 13 * i + 5) % (vocabulary - 8) for i in range(TOKENS)]


def sample(values):
    """Two numbers at each of three positions: enough, as every weight has a part in each."""
    rows = values.reshape(-1, values.shape[-1])
    count, width = rows.shape
    picked = [rows[i, j] for i in sorted({1 % count, count // 2, count - 1}) for j in sorted({width // 3, width - 2})]
    return [round(float(v), 5) for v in picked]


def auto_class(config):
    name = config["architectures"][0]
    if name.endswith("ForMaskedLM"):
        return transformers.AutoModelForMaskedLM
    if name.endswith("ForSequenceClassification"):
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForCausalLM if name.endswith(("CausalLM", "LMHeadModel")) else transformers.AutoModel


def filled(name, shape):
    """Numbers from -0.2 to 0.2 that follow from the tensor's name."""
    count = 1
    for size in shape:
        count *= size
    index = torch.arange(count, dtype=torch.int64)
    mixed = ((index + sum(name.encode())) * 2654435761) % 2**32
    return ((mixed >> 8).to(torch.float32) / 2**24 * 0.4 - 0.2).reshape(shape)


def point(config, pointer):
    """The object that holds what a JSON pointer names, and its name there."""
    *path, last = pointer[1:].split("/")
    for part in path:
        config = config[part]
    return config, last


def changed_config(config, change):
    config = json.loads(json.dumps(config))
    if "wrap" in change:
        return {**change["wrap"], "text_config": config}
    for pointer in change.get("drop", []):
        holder, field = point(config, pointer)
        del holder[field]
    for pointer, value in change.get("set", {}).items():
        if not pointer:
            return value
        holder, field = point(config, pointer)
        holder[field] = value
    return config


def changed_tensors(tensors, change):
    tensors = dict(tensors)
    for name, shape in change.get("add", []):
        tensors[name] = tensors[shape].clone() if isinstance(shape, str) else filled(name, shape)
    for name in change.get("lose", []):
        del tensors[name]
    if "copy" in change:
        old, new = change["copy"]
        tensors.update({new + k[len(old):]: v.clone() for k, v in tensors.items() if k.startswith(old)})
    if "rename" in change:
        old, new = change["rename"]
        tensors = {new + k[len(old):] if k.startswith(old) else k: v for k, v in tensors.items()}
    return tensors


class Fixture:
    def __init__(self, folder):
        self.name = folder.name
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = {}
        for file in sorted(folder.glob("model*.safetensors")):
            self.tensors.update(load_file(file))
        self.row = token_row(self.config["vocab_size"])
        self.auto = auto_class(self.config)
        self.made_up = set()
        with tempfile.TemporaryDirectory() as at:
            self.file = None
            model, self.made_up = self.load(self.write(Path(at), {}))
            self.base = self.run(model)
            fields = model.config.to_dict()
            self.newer_rope = fields.get("rope_parameters") if NEWER else None
            self.whole = {f"as transformers 5 writes it{words}": {k: v for k, v in json.loads(model.config.to_json_string(use_diff=diff)).items() if k != "_name_or_path"}
                          for words, diff in {"": False, ", differences from the defaults": True}.items()}
            heads = fields.get("num_attention_heads") or fields.get("n_head")
            self.layers = fields.get("num_hidden_layers") or fields.get("n_layer")
            self.head_dim = fields.get("head_dim") or (fields.get("hidden_size") or fields.get("n_embd")) // heads

    def write(self, folder, change):
        (folder / "config.json").write_text(json.dumps(changed_config(self.config, change)))
        weights = folder / "model.safetensors"
        if any(k in change for k in ("add", "lose", "copy", "rename")) or self.file is None:
            save_file(changed_tensors(self.tensors, change), weights, metadata={"format": "pt"})
        else:
            weights.symlink_to(self.file)
        if change.get("leftover"):
            shard = "model-00001-of-00001.safetensors"
            save_file({k: filled(k, v.shape) for k, v in self.tensors.items()}, folder / shard, metadata={"format": "pt"})
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(self.tensors, shard)}))
        return folder

    def load(self, folder):
        kind = {"dtype" if NEWER else "torch_dtype": torch.float32}
        model, info = self.auto.from_pretrained(folder, output_loading_info=True, attn_implementation="eager", local_files_only=True, **kind)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        made_up = set(info["missing_keys"]) | {str(m[0]) for m in info["mismatched_keys"]}
        return model.eval().to(torch.float32), made_up - self.made_up

    def run(self, model):
        with torch.no_grad():
            out = model(input_ids=torch.tensor([self.row]), use_cache=False) if "CausalLM" in self.auto.__name__ else model(input_ids=torch.tensor([self.row]))
        return (out.logits if hasattr(out, "logits") else out.last_hidden_state)[0].to(torch.float32)

    def answer(self, change):
        if "known" in change:
            return change["known"]
        with tempfile.TemporaryDirectory() as at:
            try:
                model, made_up = self.load(self.write(Path(at), change))
                if made_up:
                    return "random"
                values = self.run(model)
            except Exception as error:  # whatever transformers raises is its answer
                if os.environ.get("WHY"):
                    print(f"{self.name}: {change['what']}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
                return "fails"
        if not torch.isfinite(values).all():
            return "fails"
        if values.shape == self.base.shape and float((values - self.base).abs().max()) < 1e-6:
            return "same"
        return sample(values)

    def class_defaults(self):
        """Of the fields that the class has, not of those of every configuration."""
        try:
            kind = transformers.AutoConfig.for_model(self.config["model_type"])
        except Exception:
            return {}
        common = transformers.PretrainedConfig().to_dict()
        return {k: v for k, v in kind.to_dict().items() if k not in common and isinstance(v, (int, float, str, bool, list, type(None)))}


def answers_of(folder, changes, name):
    file = next(folder.glob("model.safetensors"), None)
    fixture = Fixture(folder)
    with tempfile.TemporaryDirectory() as at:
        if file is None:
            file = Path(at) / "model.safetensors"
            save_file(fixture.tensors, file, metadata={"format": "pt"})
        fixture.file = file.resolve()
        for change in changes(fixture):
            yield change, fixture.answer(change)


def older_answers(python, folder, lines):
    run = subprocess.run([python, __file__, "--answers", folder], input="\n".join(map(json.dumps, lines)), capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr)
    return [json.loads(line) for line in run.stdout.splitlines()]


def compact(changes, layers):
    """Changes of one field with the same answer on one line, as "each": [pointer, value] or, where it goes, [pointer]. Layers as "#"."""
    groups, lines = {}, []
    for change in changes:
        change = {k: v for k, v in change.items() if k not in ("newer", "known")}
        single = [[k, v] for k, v in change.get("set", {}).items() if k] + [[k] for k in change.get("drop", [])]
        answers = {k: change[k] for k in ("answer", "older") if k in change}
        if len(single) == 1 and len(change) == 2 + len(answers) and not any(isinstance(a, list) for a in answers.values()):
            groups.setdefault(json.dumps(answers), []).append(single[0])
            continue
        for part in ("add", "lose"):
            if part in change:
                change[part] = in_every_layer(change[part], layers)
        lines.append(change)
    return lines + [{"each": each, **json.loads(answers)} for answers, each in groups.items()]


def in_every_layer(entries, layers):
    """Entries that are alike but for the number of layer or expert become one, if it is all of them."""
    groups = {}
    for entry in entries:
        name, *rest = entry if isinstance(entry, list) else [entry]
        numbers = re.findall(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", name)
        pattern = re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)", "#", name)
        groups.setdefault((pattern, json.dumps(rest)), []).append((entry, numbers))
    out = []
    for (pattern, rest), found in groups.items():
        if len({numbers[0] for _, numbers in found if numbers}) == layers > 1:
            out.append([pattern, *json.loads(rest)] if isinstance(found[0][0], list) else pattern)
        else:
            out.extend(entry for entry, _ in found)
    return out


def main():
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--answers"]:
        lines = [json.loads(line) for line in sys.stdin]
        print(json.dumps(Fixture(Path(sys.argv[2])).class_defaults()) if lines == [{}] else
              "\n".join(json.dumps(answer) for _, answer in answers_of(Path(sys.argv[2]), lambda _: lines, "")))
        return
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    fixtures, python = Path(sys.argv[1]), sys.argv[2]
    from config_changes import all_changes

    for folder in sorted((fixtures / "hf").iterdir()):
        if folder.name in REMOTE or sys.argv[3:] and folder.name not in sys.argv[3:]:
            continue
        fixture = Fixture(folder)
        shapes = {name: list(tensor.shape) for name, tensor in fixture.tensors.items()}
        dims = int(fixture.head_dim * ((fixture.newer_rope or {}).get("partial_rotary_factor") or 1))
        defaults = {"5": fixture.class_defaults(), "4": older_answers(python, folder, [{}])[0]}
        changes = list(all_changes(fixture.config, fixture.newer_rope, dims, defaults, fixture.whole, shapes))
        results = [answer for _, answer in answers_of(folder, lambda _: changes, folder.name)]
        known = [c for c in changes if not c.get("newer")]
        older = dict(zip(map(id, known), older_answers(python, folder, known)))
        layers = fixture.layers
        fields = sorted((defaults["5"].keys() | defaults["4"].keys()) - fixture.config.keys())
        first = {"fixture": folder.name, "tokens": fixture.row, "layers": layers, "fields": fields, "answer": sample(fixture.base)}
        lines = []
        if os.environ.get("RAW"):
            Path(os.environ["RAW"], folder.name + ".json").write_text(json.dumps([changes, results, [older.get(id(c)) for c in changes]]))
        for change, answer in zip(changes, results):
            before = older.get(id(change), answer)
            differs = before != answer
            if isinstance(before, list) and isinstance(answer, list):
                differs = len(before) != len(answer) or max(abs(a - b) for a, b in zip(before, answer)) > 2e-5
            lines.append({**change, "answer": answer, **({"older": before} if differs else {})})
        target = fixtures / "changed_configs" / f"{folder.name}.jsonl"
        target.parent.mkdir(exist_ok=True)
        lines = [first, *compact(lines, layers)]
        target.write_text("\n".join(json.dumps(line, separators=(",", ":")) for line in lines) + "\n")
        print(folder.name, len(changes), "changes", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

"""What kills and full_disk run: every verb that writes, on tiny models, in a folder of its own."""
import hashlib
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
MODEL = FIXTURES / "llama_gqa/model.gguf"
STEPS = """calibration:
  text: text.txt
  tokens: 512
  length: 64
steps:
  - method: gqa
    group: 2
  - method: refit
"""


class Job:
    """A command, run in a folder, and what it leaves there. `more`: what it may leave besides, and need not have the same bytes.
    `others`: files of somebody else, which stay. `first`: where it overwrites, the command that came before, if it is another.
    `exchanges`: the file system can exchange two folders; else a killed run may have moved one away, which the next run brings back."""

    def __init__(self, name, words, more=(), others=(), first=None, exchanges=True):
        self.name, self.words, self.more, self.others, self.exchanges = name, [str(word) for word in words], more, others, exchanges
        self.first = Job(name, first, more, others, None, exchanges) if first else self

    def lost(self, folder):
        """What is wrong with the files of others, else ''."""
        for name in self.others:
            path = folder / name
            if not path.is_file() or path.read_text() != "mine" or path.stat().st_mode & 0o777 != 0o640:
                return f"{name} is lost or changed"
        return ""


def jobs(refold):
    """Those that this program can do: training needs libtorch."""
    return [job for job in all_jobs() if job.name != "train" or (refold.parent / "librefold_torch.so").exists()]


def all_jobs():
    compress = ["compress", MODEL, "-o", "out.gguf", "-t", 1]
    folder = ["export", "model", "--to", "hf", "-o", "out"]
    others = ["out/thesis.txt", "out/.git/objects/ab", "out/onnx/model.onnx"]
    tasks = ["--tasks", "piqa", "--data", FIXTURES / "tasks", "--limit", "6", "--f32", "-t", 1]
    return [
        Job("compress", [*compress, "--recipe", "steps.yaml"]),
        Job("compress --overwrite", [*compress, "--recipe", "steps.yaml", "--overwrite"]),
        Job("fit", ["fit", MODEL, "-o", "out.gguf", "-t", 1, "--ratio", "0.9", "--probe-tokens", "64", "--calib", "text.txt",
                    "--calib-tokens", "512", "--sequence-length", "64"], more=["out.gguf.fit"]),
        Job("train", ["train", MODEL, "-o", "out.gguf", "-t", 1, "--data", "text.txt", "--set", "steps=12", "--set", "context=16",
                      "--set", "batch=2", "--set", "save_every=3"], more=["out.train"]),
        Job("quantize", ["quantize", MODEL, "-o", "out.gguf", "-t", 1, "--type", "q8_0"]),
        Job("export", ["export", MODEL, "-o", "out"]),
        Job("export --overwrite", ["export", MODEL, "-o", "out", "--overwrite"]),
        Job("export hf", folder),
        *(Job(name, [*folder, "--overwrite"], others=others, first=[*folder, "--overwrite", "--shard-gb", "0.0001"], exchanges=exchanges)
          for name, exchanges in (("export hf --overwrite", True), ("export hf --overwrite (no exchange)", False))),
        Job("imatrix", ["imatrix", MODEL, "-o", "out.gguf", "-t", 1, "--calib", "text.txt", "--calib-tokens", "96",
                        "--sequence-length", "16"]),
        Job("eval tasks", ["eval", "tasks", "model", *tasks, "-o", "out.json", "--samples", "out.jsonl"]),
        Job("pull", ["pull", "org/name"]),
    ]


class Hub(http.server.ThreadingHTTPServer):
    """The two endpoints of a hub that a download uses, for one repository."""
    COMMIT = "0123456789abcdef0123456789abcdef01234567"

    def __init__(self):
        files = {path.name: path.read_bytes() for path in (FIXTURES / "hf/llama_gqa").iterdir()}

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                path = self.path.split("?")[0]
                if path.startswith("/api/models/org/name/revision/"):
                    listing = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
                    return self.reply(json.dumps({"id": "org/name", "sha": Hub.COMMIT, "siblings": listing}).encode(), "listing")
                data = files[path.rsplit("/", 1)[1]]
                begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                begin = int(begin[1]) if begin else 0
                name = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()  # as git names it
                self.reply(data[begin:], name, 206 if begin else 200, {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
                           if begin else {})

            def reply(self, data, tag, status=200, headers={}):
                self.send_response(status)
                for name, value in {"ETag": f'"{tag}"', "X-Repo-Commit": Hub.COMMIT, "Content-Length": len(data), **headers}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            def log_message(self, *_):
                pass

            do_HEAD = do_GET

        super().__init__(("127.0.0.1", 0), Handler)
        self.daemon_threads = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # a killed client


class Runner:
    def __init__(self, refold, shim):
        self.refold, self.shim, self.hub = str(refold), str(shim), Hub()

    def prepare(self, folder, job):
        """What the jobs read, and the files of others."""
        for name in job.others:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("mine")
            (folder / name).chmod(0o640)
        draw = random.Random(1)
        words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(900)]
        (folder / "text.txt").write_text(" ".join(words))
        (folder / "steps.yaml").write_text(STEPS)
        model = folder / "model"
        model.mkdir()
        for part in ("tokenizers/bpe_llama3", "hf/llama_gqa"):
            for path in (FIXTURES / part).iterdir():
                shutil.copy(path, model)

    def start(self, job, folder, fault=""):
        own = {"HF_ENDPOINT": f"http://127.0.0.1:{self.hub.server_address[1]}", "HF_HUB_CACHE": str(folder / "hub"),
               "HF_HOME": str(folder / "hub"), "HF_TOKEN": "", "HF_HUB_OFFLINE": "", "no_proxy": "127.0.0.1",
               "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp"), "LD_PRELOAD": self.shim, "REFOLD_FAULT": fault}
        if not job.exchanges:
            own["REFOLD_NO_EXCHANGE"] = "1"
        (folder / "tmp").mkdir(exist_ok=True)
        return subprocess.Popen([self.refold, *job.words], cwd=folder, env={**os.environ, **own}, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, job, folder, fault=""):
        """The exit code (negative: the signal) and the error output."""
        process = self.start(job, folder, fault)
        _, error = process.communicate(timeout=300)
        return process.returncode, error


def content(path):
    """What of a file does not change from run to run."""
    data = path.read_bytes()
    if path.name != "out.json":
        return data
    results = json.loads(data)  # without times and versions of the machine
    return json.dumps({key: results[key] for key in ("results", "n-samples", "n-shot", "versions")}).encode()


def files_of(folder, job, inputs):
    """The files that a job has left, by their path, without inputs and what it may leave."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and str(name) not in inputs and not any(name.parts[0] == part for part in job.more):
            found[str(name)] = path
    return found


class Reference:
    """A run that nothing disturbs: its files, how many operations on files it takes, and how many bytes it writes."""

    def __init__(self, runner, job, twice=False):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            runner.prepare(folder, job)
            self.inputs = {str(path.relative_to(folder)) for path in folder.rglob("*")}
            for command in [job.first] * ("--overwrite" in job.words) + [job]:
                code, error = runner.run(command, folder, f"count:{folder}/tmp/count")
                if code != 0:
                    raise SystemExit(f"{job.name}: the undisturbed run fails ({code}): {error}")
                counts = (folder / "tmp/count").read_text().split()
                (folder / "tmp/count").unlink()
                if command is job.first:
                    self.before = self.contents(folder, job)
            self.operations, self.bytes = int(counts[0]), int(counts[1])
            self.files = self.contents(folder, job)

    def contents(self, folder, job):
        return {name: content(path) for name, path in files_of(folder, job, self.inputs).items()}

    def is_lost(self, folder, job):
        """What was there before an overwriting command is neither there nor replaced as a whole. Temporary
        files and results may be left."""
        left = {name: data for name, data in self.contents(folder, job).items() if ".partial-" not in name and ".work/" not in name}
        return left not in (self.before, self.files)

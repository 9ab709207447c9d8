"""Runs lm-evaluation-harness for bench/lm_eval, in its own environment. Reads a request as JSON from standard input and writes
results, samples and seconds of every task as JSON to standard output."""
import json
import sys
import time

request = json.load(sys.stdin)
output, sys.stdout = sys.stdout, sys.stderr

import torch

torch.set_num_threads(request["threads"])

from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

server = request["server"]
if server:
    model = LocalCompletionsAPI(base_url=server["url"] + "/v1/completions", model=server["model"],
                                tokenizer=request["model"], tokenizer_backend="huggingface",
                                batch_size=request["batch"], num_concurrent=4, max_length=request["max_length"])
else:
    model = HFLM(pretrained=request["model"], dtype="float32", device="cpu", batch_size=request["batch"],
                 max_length=request["max_length"])
manager = TaskManager(include_path=request["folder"])
answers = {}
for name in request["tasks"]:
    start = time.perf_counter()
    result = simple_evaluate(model, tasks=[f"{name}_local"], limit=request["limit"], bootstrap_iters=0,
                             task_manager=manager)
    seconds = time.perf_counter() - start
    samples = result["samples"][f"{name}_local"]
    for sample in samples:
        # As lm-eval writes its samples files.
        sample["arguments"] = {f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(argument)}
                               for i, argument in enumerate(sample["arguments"])}
        for key in ("resps", "doc"):
            sample.pop(key)
        sample["target"] = str(sample["target"])
    answers[name] = {"results": result["results"][f"{name}_local"], "samples": samples, "seconds": seconds}
json.dump(answers, output, default=str)

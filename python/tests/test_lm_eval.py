import json
import os
import shutil
import subprocess
import sys
import unittest

import refold
from fixtures import FIXTURES, FolderTest, needs, program

harness = needs("lm_eval")
if harness:
    from lm_eval.api.instance import Instance
    from refold.lm_eval import RefoldLM

LLAMA = os.path.join(FIXTURES, "llama", "model.gguf")


def lines_of(*path):
    with open(os.path.join(FIXTURES, *path), encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def instances(kind, arguments):
    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


@unittest.skipUnless(harness, "lm-eval is not installed")
class LmEvalTest(FolderTest):
    """Against what lm-eval's own model `hf` has answered."""

    def compare(self, model, samples):
        asked, expected = [], []
        for sample in samples:
            for arguments, answer in zip(sample["arguments"].values(), sample["filtered_resps"]):
                asked.append((arguments["arg_0"], arguments["arg_1"]))
                expected.append(answer)
        found = model.loglikelihood(instances("loglikelihood", asked), disable_tqdm=True)
        self.assertEqual(len(found), len(expected))
        for (total, greedy), (expected_total, expected_greedy) in zip(found, expected):
            self.assertAlmostEqual(total, expected_total, delta=1e-3 + 1e-5 * abs(expected_total))
            self.assertEqual(greedy, expected_greedy)

    def test_log_likelihoods(self):
        bpe = self.path("bpe")
        os.mkdir(bpe)
        for folder in ("hf/llama_gqa", "tokenizers/bpe_llama3"):
            shutil.copytree(os.path.join(FIXTURES, folder), bpe, dirs_exist_ok=True)
        self.compare(RefoldLM(bpe, f32=True, threads=1), lines_of("tasks", "lm_eval", "piqa.jsonl"))

    def test_contexts_that_are_too_long_lose_their_beginning(self):
        model = RefoldLM(LLAMA, f32=True, threads=1, max_length=96)
        self.compare(model, lines_of("tasks", "lm_eval", "hellaswag.jsonl"))

    def test_the_model_hf_takes_prepared_directories(self):
        import refold.transformers
        from lm_eval.models.huggingface import HFLM

        folder = refold.transformers.prepare(LLAMA, self.path("prepared"))
        model = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=4, max_length=96)
        self.compare(model, lines_of("tasks", "lm_eval", "hellaswag.jsonl"))

    def test_empty_contexts_and_greedy_continuations(self):
        model = RefoldLM(LLAMA, f32=True, threads=1)
        context = model.tok_encode("The licence")
        tokens = model.model.generate(context, max_tokens=3, ignore_eos=True).tokens
        asked = [
            (None, context, tokens),
            (None, context, [*tokens[:2], (tokens[2] + 1) % model.model.n_vocab]),
        ]
        (best, greedy), (other, not_greedy) = model._loglikelihood_tokens(asked, disable_tqdm=True)
        self.assertEqual((greedy, not_greedy), (True, False))
        self.assertGreater(best, other)
        ((total, _),) = model.loglikelihood(instances("loglikelihood", [("", "The licence")]), True)
        self.assertAlmostEqual(total, sum(t.logprob for t in model.model.logprobs("The licence")), places=4)

    def test_rolling_log_likelihoods(self):
        model = RefoldLM(LLAMA, f32=True, threads=1, max_length=64)
        samples = lines_of("eval", "samples_lm_eval_ppl.jsonl")
        asked = [tuple(sample["arguments"]["gen_args_0"].values()) for sample in samples]
        found = model.loglikelihood_rolling(instances("loglikelihood_rolling", asked), disable_tqdm=True)
        with open(os.path.join(FIXTURES, "eval", "lm_eval_ppl.json")) as file:
            expected = [document["log_likelihood"] for document in json.load(file)["documents"]]
        self.assertEqual(len(found), len(expected))
        for total, wanted in zip(found, expected):
            self.assertAlmostEqual(total / wanted, 1, places=5)

    def test_generation_up_to_stop_texts(self):
        model = RefoldLM(LLAMA, f32=True, threads=1, batch_size=2, max_length=128)
        prompts = ["The licence is", "Copies of the", "A text"]
        whole = [model.model.generate(prompt, max_tokens=20) for prompt in prompts]
        found = model.generate_until(
            instances(
                "generate_until", [(prompt, {"until": ["\n\n\n"], "max_gen_toks": 20}) for prompt in prompts]
            ),
            disable_tqdm=True,
        )
        self.assertEqual(found, [g.text for g in whole])
        stop = whole[0].text[4]
        mixed = [
            (prompts[0], {"until": [stop], "max_gen_toks": 20}),
            (prompts[1], {"until": [], "max_gen_toks": 4, "temperature": 0.0, "do_sample": False}),
            (prompts[2], {"max_gen_toks": 8, "do_sample": True, "temperature": 0.7, "top_p": 0.9, "seed": 3}),
        ]
        found = model.generate_until(instances("generate_until", mixed), disable_tqdm=True)
        self.assertEqual(found[0], whole[0].text[: whole[0].text.index(stop)])
        self.assertEqual(found[1], model.model.generate(prompts[1], max_tokens=4).text)
        sampled = model.model.generate(prompts[2], max_tokens=8, temperature=0.7, top_p=0.9, seed=3)
        self.assertEqual(found[2], sampled.text)
        with self.assertRaisesRegex(refold.UnsupportedError, "num_beams"):
            model.generate_until(instances("generate_until", [("a", {"num_beams": 4})]), disable_tqdm=True)

    def test_the_command_gives_the_answers_of_refold_eval_tasks(self):
        data = os.path.join(FIXTURES, "tasks")
        samples = self.path("samples.jsonl")
        program("eval", "tasks", LLAMA, "--tasks", "lambada_openai", "--data", data, "--f32", "-t", "1",
                "--samples", samples)  # fmt: skip
        with open(samples) as file:
            ours = [json.loads(line) for line in file]
        # The harness's task, on these items.
        items = self.path("items.jsonl")
        with open(items, "w") as out:
            for sample in ours:
                (arguments,) = sample["arguments"].values()
                out.write(json.dumps({"context": arguments["arg_0"], "last": arguments["arg_1"]}) + "\n")
        with open(self.path("words.yaml"), "w") as out:
            out.write(f"""task: words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {items}}}}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{last}}}}"
target_delimiter: ""
metric_list:
  - metric: perplexity
  - metric: acc
""")
        command = [sys.executable, "-m", "refold.lm_eval", "run", "--model", "refold", "--model_args",
                   f"pretrained={LLAMA},f32=True,threads=1", "--tasks", "words", "--include_path", self.folder,
                   "--output_path", self.path("out"), "--log_samples"]  # fmt: skip
        shown = subprocess.run(command, capture_output=True, text=True, env={
            **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": self.path("cache"), "OMP_NUM_THREADS": "1"})  # fmt: skip
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertIn("words", shown.stdout)
        (written,) = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.path("out"))
            for name in names
            if name.startswith("samples_words")
        ]
        with open(written) as file:
            theirs = [json.loads(line) for line in file]
        self.assertEqual(len(theirs), len(ours))
        for a, b in zip(theirs, ours):
            (x,), (y,) = a["filtered_resps"], b["filtered_resps"]
            self.assertAlmostEqual(float(x[0]), float(y[0]), places=3)
            self.assertEqual(str(x[1]), str(y[1]))


if __name__ == "__main__":
    unittest.main()

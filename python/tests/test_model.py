import json
import os
import signal
import threading
import time
import unittest

import numpy as np
import refold
from fixtures import FIXTURES, LLAMA, TEXT, FolderTest, golden, program

PROMPT = "The licence is"


def text(words=None):
    with open(TEXT, encoding="utf-8") as file:
        return " ".join(file.read().split()[:words])


class ModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = refold.load(LLAMA, threads=1, f32=True)

    def test_logits_are_the_golden_ones(self):
        facts, arrays = golden("llama_gqa")
        for i, row in enumerate(facts["rows"]):
            logits = self.model.logits(row)
            self.assertEqual(logits.dtype, np.float32)
            self.assertEqual(logits.shape, (len(row), self.model.n_vocab))
            np.testing.assert_allclose(logits, arrays[f"logits.{i}"], atol=1e-4)
            np.testing.assert_allclose(self.model.logits(np.array(row), last=True), logits[-1], atol=1e-4)

    def test_logits_belong_to_the_caller(self):
        first = self.model.logits([1, 2, 3])
        kept = first.copy()
        self.model.logits([4, 5, 6])
        np.testing.assert_array_equal(first, kept)
        self.assertFalse(first.flags.owndata)  # what the engine wrote, not a copy of it
        first[:] = 0  # writable

    def test_greedy_tokens_are_the_golden_ones(self):
        facts, _ = golden("llama_gqa")
        greedy = facts["greedy"]
        found = self.model.generate(greedy["prompt"], max_tokens=len(greedy["tokens"]), ignore_eos=True)
        self.assertEqual(found.tokens, greedy["tokens"])
        self.assertEqual(found.finished, "length")

    def test_text_is_that_of_the_program(self):
        options = ["-n", "20", "--f32", "-t", "1", "--temperature", "0.8", "--seed", "7"]
        printed = program("run", LLAMA, "-p", PROMPT, *options)
        found = self.model.generate(PROMPT, max_tokens=20, temperature=0.8, seed=7)
        self.assertEqual(found.text, printed["text"])
        self.assertEqual(str(found), found.text)
        self.assertEqual(found.tokens, printed["tokens"])

    def test_prompts_in_a_list_are_continued_as_alone(self):
        model = refold.load(LLAMA, threads=1, f32=True, context=64, sequences=3)
        prompts = [PROMPT, model.tokenize("The licence"), "A text", np.array([5, 6, 7])]
        together = model.generate(prompts, max_tokens=12)
        self.assertEqual(len(together), len(prompts))
        for prompt, found in zip(prompts, together):
            self.assertEqual(found.tokens, self.model.generate(prompt, max_tokens=12).tokens)
        self.assertEqual(model.generate([]), [])

    def test_a_model_drafts(self):
        model = refold.load(LLAMA, threads=1, f32=True, context=64, draft_model=LLAMA, draft_tokens=4)
        for options in ({}, {"temperature": 0.8, "mirostat": 2}, {"temperature": 1, "typical_p": 0.5}):
            expected = self.model.generate(PROMPT, max_tokens=30, **options)
            self.assertEqual(model.generate(PROMPT, max_tokens=30, **options).tokens, expected.tokens)
        with self.assertRaises(refold.UsageError):
            refold.load(LLAMA, draft_model=LLAMA, draft_tokens=0)

    def test_a_stream_gives_the_text_in_pieces(self):
        whole = self.model.generate(PROMPT, max_tokens=30)
        stream = self.model.generate(PROMPT, max_tokens=30, stream=True)
        with self.assertRaises(refold.UsageError):
            stream.result
        pieces = list(stream)
        self.assertGreater(len(pieces), 1)
        self.assertEqual("".join(pieces), whole.text)
        self.assertEqual(stream.result.tokens, whole.tokens)
        with self.assertRaises(StopIteration):
            next(stream)

    def test_a_stream_can_be_closed(self):
        with self.model.generate(PROMPT, max_tokens=200, ignore_eos=True, stream=True) as stream:
            next(stream)
        self.assertIn(stream.result.finished, ("cancelled", "length"))
        # One that is given up without closing it frees the model as well.
        next(self.model.generate(PROMPT, max_tokens=200, stream=True))
        self.model.generate(PROMPT, max_tokens=1)

    def test_formats(self):
        schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
        text = self.model.generate("Hello", json_schema=schema, max_tokens=100).text
        self.assertIn(json.loads(text)["n"], (1, 2))
        self.assertIn(self.model.generate("Hello", choices=["yes", "no"]).text, ("yes", "no"))
        self.assertRegex(self.model.generate("Hello", regex="[ab]{4}").text, "^[ab]{4}$")
        self.assertEqual(self.model.generate("Hello", grammar='root ::= "x"').text, "x")
        with self.assertRaisesRegex(ValueError, "exclude"):
            self.model.generate("Hello", regex="a", grammar='root ::= "x"')
        with self.assertRaisesRegex(refold.UsageError, "'uniqueItems' cannot be enforced"):
            self.model.generate("Hello", json_schema={"uniqueItems": True})

    def test_stop_texts_and_log_probabilities(self):
        whole = self.model.generate(PROMPT, max_tokens=12, logprobs=2)
        self.assertEqual(len(whole.logprobs), 12)
        self.assertEqual(whole.logprobs[0].token, whole.tokens[0])
        self.assertEqual([token for token, _ in whole.logprobs[0].top][0], whole.tokens[0])
        stop = whole.text[3]
        found = self.model.generate(PROMPT, max_tokens=12, stop=[stop])
        self.assertEqual((found.text, found.finished), (whole.text[: whole.text.index(stop)], "stop"))
        self.assertEqual(found.stop_text, stop)

    def test_chat_continues_the_chat_template(self):
        messages = [("system", "Be brief."), {"role": "user", "content": "Hello"}]
        prompt = self.model.apply_chat_template(messages)
        self.assertIn("Be brief.", prompt)
        found = self.model.chat(messages, max_tokens=5)
        self.assertEqual(found.tokens, self.model.generate(prompt, max_tokens=5).tokens)
        self.assertEqual("".join(self.model.chat(messages, max_tokens=5, stream=True)), found.text)

    def test_scores_are_those_of_the_logits(self):
        context, continuation = "The licence", " is a text"
        tokens = self.model.tokenize(context) + self.model.tokenize(continuation, add_special=False)
        logits = self.model.logits(tokens).astype(np.float64)
        all_of_them = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        expected = [all_of_them[i, token] for i, token in enumerate(tokens[1:])]
        found = self.model.logprobs(tokens, top=3)
        np.testing.assert_allclose([t.logprob for t in found], expected, atol=1e-4)
        self.assertEqual(len(found[0].top), 3)
        count = len(self.model.tokenize(continuation, add_special=False))
        self.assertAlmostEqual(self.model.score(context, continuation), sum(expected[-count:]), places=3)

    def test_perplexity_is_that_of_the_program(self):
        printed = program(
            "eval", "ppl", LLAMA, "--text", TEXT, "--context", "64", "--max-windows", "3", "--f32", "-t", "1"
        )
        reports = []
        with open(TEXT, encoding="utf-8") as file:
            found = self.model.perplexity(file.read(), context=64, max_windows=3, progress=reports.append)
        self.assertAlmostEqual(found.perplexity / printed["perplexity"], 1, places=5)
        self.assertEqual(float(found), found.perplexity)
        self.assertEqual(found.windows, 3)
        self.assertEqual(reports[-1], refold.Progress("perplexity", 3, 3, "windows"))

    def test_tokens_and_texts(self):
        tokens = self.model.tokenize("Grüße, world")
        self.assertEqual(tokens[0], self.model.bos)
        self.assertEqual(self.model.detokenize(np.array(tokens)), "Grüße, world")
        self.assertEqual(tokens[1:], self.model.tokenize("Grüße, world", add_special=False))

    def test_inspect(self):
        facts = self.model.inspect()
        self.assertEqual(facts, refold.inspect(LLAMA))
        self.assertEqual((facts["architecture"], facts["layers"]), ("llama", 4))
        self.assertEqual(facts["stored"]["parameters"], 176712)

    def test_threads_take_turns(self):
        expected = self.model.generate(PROMPT, max_tokens=200, ignore_eos=True).tokens
        found = []
        ready = threading.Barrier(4)

        def run():
            ready.wait()
            found.append(self.model.generate(PROMPT, max_tokens=200, ignore_eos=True).tokens)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found, [expected] * 4)

    def test_ctrl_c_while_it_computes(self):
        # Hours of work, which ends only because another thread can run meanwhile and the signal is seen.
        long = text(20000)
        begun = threading.Event()

        def interrupt():
            begun.wait()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

        # Ignored by programs that a shell has started in the background.
        self.addCleanup(
            signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)
        )
        thread = threading.Thread(target=interrupt)
        thread.start()
        with self.assertRaises(KeyboardInterrupt):
            begun.set()
            self.model.perplexity(long, context=250, stride=1)
        thread.join()
        self.assertEqual(len(self.model.generate(PROMPT, max_tokens=3).tokens), 3)

    def test_what_a_callback_raises_comes_through(self):
        def fail(_):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            self.model.perplexity(text(20000), context=250, stride=1, progress=fail)


class ErrorTest(FolderTest):
    def test_errors_have_classes(self):
        model = refold.load(LLAMA, threads=1, context=32)
        broken = self.path("broken.gguf")
        with open(broken, "wb") as file:
            file.write(b"GGUF")
        encoder = os.path.join(FIXTURES, "hf", "bert_encoder")
        for expected, also, action in [
            (refold.UsageError, ValueError, lambda: refold.load("no-such-model")),
            (refold.UsageError, ValueError, lambda: model.generate("a", top_p=2)),
            (refold.InputError, ValueError, lambda: model.generate(list(range(40)))),
            (refold.InputError, ValueError, lambda: model.logits([100000])),
            (refold.InputError, ValueError, lambda: refold.load(broken)),
            (refold.FileError, OSError, lambda: refold.load("/nowhere/model.gguf")),
            (refold.UnsupportedError, NotImplementedError, lambda: refold.load(encoder)),
        ]:
            with self.subTest(expected.__name__):
                with self.assertRaises(expected) as caught:
                    action()
                self.assertIsInstance(caught.exception, (refold.Error, also))
                self.assertIsInstance(caught.exception, also)
                self.assertIn("[", str(caught.exception))

    def test_wrong_types_and_names(self):
        model = refold.load(LLAMA, threads=1, context=32)
        with self.assertRaisesRegex(TypeError, "temprature"):
            model.generate("a", temprature=1)
        with self.assertRaisesRegex(TypeError, "top_k"):
            model.generate("a", top_k="many")
        with self.assertRaises(TypeError):
            model.generate(["a", "b"], stream=True)


class PackageTest(unittest.TestCase):
    def test_libraries_are_those_of_the_package(self):
        refold.load(LLAMA, threads=1, context=32)
        package = os.path.dirname(os.path.realpath(refold.__file__))
        loaded = {}
        with open("/proc/self/maps") as file:
            for line in file:
                path = line.split()[-1]
                name = os.path.basename(path)
                if name.startswith(("libllama", "libggml")):
                    loaded[name.split(".")[0]] = os.path.realpath(path)
        self.assertIn("libllama", loaded)
        self.assertTrue(any(name.startswith("libggml-cpu") for name in loaded), loaded)
        for path in loaded.values():
            self.assertTrue(path.startswith(package + os.sep), path)


if __name__ == "__main__":
    unittest.main()

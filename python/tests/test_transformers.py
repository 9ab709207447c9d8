import os
import subprocess
import sys
import unittest

import numpy as np
import refold
from fixtures import FIXTURES, LLAMA, FolderTest, golden, needs

torch, transformers, peft = needs("torch"), needs("transformers"), needs("peft")
if torch and transformers:
    import refold.transformers

PROMPT = "The licence is"
SHARE = [{"method": "direct_share", "ratio": 0.5}]


@unittest.skipUnless(torch and transformers, "torch or transformers is not installed")
class TransformersTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.file = self.path("small.gguf")
        refold.compress(LLAMA, SHARE, self.file, threads=1)
        self.prepared = refold.transformers.prepare(self.file, self.path("small"))
        self.engine = refold.load(self.file, threads=1, f32=True, context=128)

    def test_auto_classes_load_a_prepared_directory(self):
        self.assertNotIn("small.gguf", os.listdir(self.prepared))  # named, not copied
        config = transformers.AutoConfig.from_pretrained(self.prepared)
        self.assertEqual((config.model_type, config.vocab_size), ("refold", self.engine.n_vocab))
        self.assertEqual((config.bos_token_id, config.eos_token_id), (self.engine.bos, self.engine.eos))
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.prepared)
        tokens = self.engine.tokenize(PROMPT)
        self.assertEqual(tokenizer(PROMPT)["input_ids"], tokens)
        self.assertEqual(refold.transformers.tokenizer(self.file)(PROMPT)["input_ids"], tokens)
        with torch.no_grad():
            found = model(**tokenizer(PROMPT, return_tensors="pt")).logits[0].numpy()
        np.testing.assert_allclose(found, self.engine.logits(tokens), atol=1e-4)
        self.assertEqual(
            sum(p.numel() for p in model.parameters()), refold.inspect(self.file)["stored"]["parameters"]
        )

    def test_copies_and_files_load_too(self):
        copied = refold.transformers.prepare(self.file, self.path("copied"), copy=True)
        os.rename(copied, self.path("moved"))
        for name in (self.path("moved"), self.file):
            model = refold.transformers.RefoldForCausalLM.from_pretrained(name, dtype="bfloat16")
            self.assertEqual(model.dtype, torch.bfloat16)

    def test_a_copy_replaces_a_link_and_not_its_target(self):
        os.mkdir(self.path("linked"))
        with open(self.path("target"), "w", encoding="utf-8") as file:
            file.write("mine")
        model = os.path.join(self.path("linked"), "model.gguf")
        os.symlink(self.path("target"), model)
        refold.transformers.prepare(self.file, self.path("linked"), copy=True)
        self.assertFalse(os.path.islink(model))
        with open(self.path("target"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")

    def test_generation_is_that_of_the_engine(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        tokens = torch.tensor([self.engine.tokenize(PROMPT)])
        expected = self.engine.generate(PROMPT, max_tokens=20, ignore_eos=True).tokens
        for use_cache in (True, False):
            found = model.generate(
                tokens,
                max_new_tokens=20,
                min_new_tokens=20,
                do_sample=False,
                use_cache=use_cache,
                eos_token_id=None,
            )
            self.assertEqual(found[0, tokens.shape[1] :].tolist(), expected)

    def test_shared_attention_in_batches_and_beams(self):
        for steps in (
            [{"method": "uniattn", "superblocks": "2-3"}],
            [{"method": "cla", "superblocks": "1-2"}],
        ):
            refold.compress(LLAMA, steps, self.file, threads=1, overwrite=True)
            engine = refold.load(self.file, threads=1, f32=True, context=128)
            model = refold.transformers.RefoldForCausalLM.from_pretrained(self.file)
            tokenizer = refold.transformers.tokenizer(self.file)
            tokenizer.padding_side = "left"
            tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
            prompts = [PROMPT, "Copies of"]
            given = tokenizer(prompts, return_tensors="pt", padding=True)
            found = model.generate(**given, max_new_tokens=12, do_sample=False, eos_token_id=None)
            for row, prompt in zip(found, prompts):
                expected = engine.generate(prompt, max_tokens=12, ignore_eos=True).tokens
                self.assertEqual(row[-12:].tolist(), expected)
            model.generate(**given, max_new_tokens=4, num_beams=3, do_sample=False)

    def test_a_pipeline(self):
        pipeline = transformers.pipeline("text-generation", model=self.prepared)
        found = pipeline(PROMPT, max_new_tokens=8, do_sample=False)[0]["generated_text"]
        self.assertEqual(found, PROMPT + self.engine.generate(PROMPT, max_tokens=8).text)

    def test_training_and_saving(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared).train()
        tokens = torch.tensor([self.engine.tokenize(PROMPT + " a text of the licence.")])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses = []
        for _ in range(3):
            loss = model(input_ids=tokens, labels=tokens).loss
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.assertLess(losses[-1], losses[0])
        model.eval().save_pretrained(self.path("trained"))
        again = transformers.AutoModelForCausalLM.from_pretrained(self.path("trained"))
        transformers.AutoTokenizer.from_pretrained(self.path("trained"))
        with torch.no_grad():
            torch.testing.assert_close(again(tokens).logits, model(tokens).logits)
        trained = refold.open(self.path("trained/model.gguf"))
        self.assertEqual(trained.topology.to_json(), refold.open(self.file).topology.to_json())

    @unittest.skipUnless(peft, "peft is not installed")
    def test_peft_adapts_shared_maps_layer_by_layer(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        tokens = torch.tensor([self.engine.tokenize(PROMPT + " a text of the licence.")])
        with torch.no_grad():
            before = model(tokens).logits
        adapted = peft.get_peft_model(
            model, peft.LoraConfig(r=4, target_modules=["attn.q", "ffn.down"], task_type="CAUSAL_LM")
        )
        with torch.no_grad():
            torch.testing.assert_close(adapted(tokens).logits, before)
        trainable = [name for name, p in adapted.named_parameters() if p.requires_grad]
        self.assertEqual(len(trainable), 2 * 2 * 4)  # A and B of two maps of four layers
        trained = [p for p in adapted.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(trained, lr=1e-2)
        for _ in range(3):
            loss = adapted(input_ids=tokens, labels=tokens).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            self.assertGreater((adapted(tokens).logits - before).abs().max().item(), 0.01)
        # The same in refold, shared weights still shared.
        stored = refold.transformers.with_lora(adapted)
        stored.save(self.path("adapted.gguf"))
        found = refold.load(self.path("adapted.gguf"), threads=1, f32=True, context=64).logits(
            tokens[0].numpy()
        )
        with torch.no_grad():
            np.testing.assert_allclose(found, adapted.eval()(tokens).logits[0].numpy(), atol=1e-4)
        kinds = {type(layer["attn.q"].base) for layer in stored.layers}
        self.assertIn(refold.Heads, kinds)
        self.assertEqual(
            stored.inspect()["stored"]["parameters"],
            refold.inspect(self.file)["stored"]["parameters"] + sum(p.numel() for p in trained),
        )
        adapted.save_pretrained(self.path("lora"))
        fresh = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        loaded = peft.PeftModel.from_pretrained(fresh, self.path("lora"))
        with torch.no_grad():
            torch.testing.assert_close(loaded(tokens).logits, adapted.eval()(tokens).logits)

    @unittest.skipUnless(peft, "peft is not installed")
    def test_adapters_that_are_no_plain_lora_are_refused(self):
        for options in (
            {"target_modules": ["attn.q"], "use_dora": True},
            {"target_modules": ["attn.q"], "modules_to_save": ["attn.k"]},
        ):
            model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
            adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, task_type="CAUSAL_LM", **options))
            with self.subTest(options), self.assertRaises(refold.UnsupportedError):
                refold.transformers.with_lora(adapted)

    def test_what_is_not_covered(self):
        model = refold.transformers.RefoldForCausalLM.from_pretrained(self.file)
        with self.assertRaises(refold.UnsupportedError):
            model(None, inputs_embeds=torch.zeros(1, 2, 64))
        with self.assertRaises(refold.UnsupportedError):
            refold.transformers.RefoldForCausalLM.from_pretrained(self.file, device_map={"a": 0, "b": 1})
        with self.assertRaises(refold.UsageError):
            refold.transformers.prepare("no-such-model", self.path("none"))


class ImportTest(unittest.TestCase):
    def test_the_package_alone_needs_neither(self):
        code = "import sys, refold; sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
        self.assertEqual(subprocess.run([sys.executable, "-I", "-c", code]).returncode, 0)


if __name__ == "__main__":
    unittest.main()

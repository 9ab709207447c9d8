import json
import os
import shutil
import unittest

import numpy as np
import refold
from fixtures import FIXTURES, FolderTest, needs
from test_torch import check_batches_and_cache

torch, transformers, peft, harness = (needs(name) for name in ("torch", "transformers", "peft", "lm_eval"))
if torch:
    import refold.torch
if torch and transformers:
    import refold.transformers

FAMILIES = ("mixtral", "qwen3_moe", "olmoe", "granitemoe", "gpt_oss")
SLOTS = ("ffn.gate_exps", "ffn.up_exps", "ffn.down_exps")
TOKENS = [5, 6, 7, 8, 90, 17, 33, 2, 211, 7, 7, 19, 250, 3]


def name_of(slot, layer):
    return f"blk.{layer}.{slot.replace('.', '_')}.weight"


def parts_of(model, slot):
    """Experts of two layers, one of them twice, and one in a tensor and type of its own."""
    whole = model.tensors[name_of(slot, 0)].float32()
    model.set_tensor(slot + ".own", whole[2], "bf16")
    runs = [
        (name_of(slot, 0), 1, 1),
        (slot + ".own", 0, 1),
        (name_of(slot, 0), 1, 1),
        (name_of(slot, 2), 3, 1),
    ]
    return refold.Heads([*runs, (name_of(slot, 0), 0, 4)] if len(whole) == 8 else runs)


def factors_of(model, slot, transposed=False):
    matrix = model.matrix(0, slot)
    numbers = np.random.default_rng(len(slot)).normal(0, 0.4, (sum(matrix.shape), 5)).astype(np.float32)
    u, v = np.split(numbers, [matrix.shape[1 if transposed else 0]])
    model.tensors[slot + ".u"], model.tensors[slot + ".v"] = u, np.ascontiguousarray(v.T)
    model.tensors[slot + ".s"] = np.linspace(0.5, 1.5, 10).reshape(2, 5)
    return refold.LowRank(slot + ".u", slot + ".v", slot + ".s", 1, transposed)


def losses_of(model, optimizer, steps):
    tokens, losses = torch.tensor([TOKENS]), []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


class MixtureTest(FolderTest):
    def source(self, family):
        """The fixture with a tokenizer of BOS, EOS and single bytes, as many as its vocabulary has."""
        folder = self.path(family)
        if not os.path.exists(folder):
            shutil.copytree(os.path.join(FIXTURES, "hf", family), folder)
            shutil.copytree(os.path.join(FIXTURES, "tokenizers", "bpe_llama3"), folder, dirs_exist_ok=True)
            path = os.path.join(folder, "tokenizer.json")
            with open(path, encoding="utf-8") as file:
                tokenizer = json.load(file)
            entries = tokenizer["model"]["vocab"].items()
            tokenizer["model"].update(
                merges=[], vocab={text: token for text, token in entries if token < 256}
            )
            with open(path, "w", encoding="utf-8") as file:
                json.dump(tokenizer, file)
        return folder


@unittest.skipUnless(torch, "torch is not installed")
class ExpertsTest(MixtureTest):
    def compare(self, model, file):
        """The module with refold's engine on the file."""
        expected = refold.load(file, threads=1, f32=True, context=64).logits(TOKENS)
        with torch.no_grad():
            found = model(torch.tensor([TOKENS]))[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_logits_are_those_of_the_engine(self):
        for family in FAMILIES:
            with self.subTest(family):
                model = refold.torch.load(self.source(family))
                self.assertTrue(any("ffn.router" in layer.slots for layer in model.layers))
                self.compare(model, self.source(family))

    def test_what_methods_make_of_mixtures(self):
        for family, step in [
            ("mixtral", {"method": "direct_share", "ratio": 0.3}),
            ("qwen3_moe", {"method": "laser", "slots": "all", "rank": 8}),
            ("olmoe", {"method": "relax", "loops": 3, "rank": 3}),
            ("granitemoe", {"method": "prefix", "length": 3}),
            ("gpt_oss", {"method": "uniattn", "superblocks": "2-3"}),
            ("gpt_oss", {"method": "cla", "superblocks": "1-2"}),
            ("gpt_oss", {"method": "drop", "layers": "2", "modules": "ffn"}),
        ]:
            with self.subTest(f"{family}: {step}"):
                file = self.path("made.gguf")
                refold.compress(self.source(family), [step], file, threads=1, overwrite=True)
                self.compare(refold.torch.load(file), file)

    def test_the_clamped_activation_clamps(self):
        stored = refold.open(self.source("gpt_oss"))
        for slot in SLOTS[:2]:
            stored.tensors[name_of(slot, 0)] = 40 * stored.tensors[name_of(slot, 0)].float32()
        file = stored.save(self.path("made.gguf"))
        self.compare(refold.torch.load(file), file)

    def test_experts_are_any_weight_expression(self):
        makers = {
            "parts": parts_of,
            "factors": factors_of,
            "transposed": lambda model, slot: factors_of(model, slot, True),
            "lora": lambda model, slot: refold.Plus(model.layers[0][slot], factors_of(model, slot)),
            "lora on parts": lambda model, slot: refold.Plus(parts_of(model, slot), factors_of(model, slot)),
            "another layer's": lambda model, slot: model.layers[2][slot],
        }
        for family in ("mixtral", "qwen3_moe", "gpt_oss"):
            for what, make in makers.items():
                with self.subTest(f"{family}: {what}"):
                    stored = refold.open(self.source(family))
                    for slot in SLOTS:
                        stored.layers[0][slot] = make(stored, slot)
                    file = stored.save(self.path("made.gguf"), overwrite=True)
                    model = refold.torch.load(file)
                    self.compare(model, file)
                    module = model.layers[0].ffn.up_exps
                    np.testing.assert_allclose(
                        module.weight.detach().flatten(0, 1).numpy(),
                        refold.open(file).matrix(0, "ffn.up_exps"),
                        atol=1e-5,
                    )

    def test_a_shared_expert_is_one_parameter_with_the_sum_of_the_gradients(self):
        stored = refold.open(self.source("mixtral"))
        apart = stored.copy()
        for slot in SLOTS:
            stored.layers[2][slot] = refold.Heads([(name_of(slot, 0), 1, 1), (name_of(slot, 1), 0, 3)])
            parts = [
                apart.tensors[name_of(slot, 0)].float32()[1:2],
                apart.tensors[name_of(slot, 1)].float32()[:3],
            ]
            apart.tensors[name_of(slot, 2)] = np.concatenate(parts)
        stored = refold.open(stored.save(self.path("shared.gguf")))
        shared, apart = refold.torch.Model(stored), refold.torch.Model(apart)
        self.assertEqual(
            sorted(name for name, _ in shared.named_parameters()),
            sorted("stored." + name for name in stored.tensors),
        )
        self.assertEqual(
            sum(p.numel() for p in shared.parameters()), stored.inspect()["stored"]["parameters"]
        )
        for model in (shared, apart):
            losses_of(model, torch.optim.SGD(model.parameters(), lr=0), 1)
        for slot in SLOTS:
            first, second, third = (apart.stored[name_of(slot, layer)].grad for layer in range(3))
            first[1] += third[0]
            second[:3] += third[1:]
            self.assertGreater(third[0].abs().max(), 1e-5)
            for layer, wanted in enumerate((first, second)):
                found = shared.stored[name_of(slot, layer)].grad
                torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-4)
            self.assertNotIn(name_of(slot, 2), stored.tensors)

    def test_training_reaches_routers_sinks_and_experts(self):
        for family in FAMILIES:
            with self.subTest(family):
                model = refold.torch.load(self.source(family))
                losses = losses_of(model, torch.optim.AdamW(model.parameters(), lr=3e-3), 5)
                self.assertLess(losses[-1], losses[0] - 0.3)
                for name, parameter in model.stored.named_parameters():
                    if parameter.requires_grad:
                        self.assertGreater(parameter.grad.abs().max(), 0, name)
                file = model.save(self.path(family + ".gguf"), type="f32")
                self.compare(model, file)

    def test_gradients_are_those_of_differences(self):
        for family in ("olmoe", "gpt_oss"):
            model = refold.torch.load(self.source(family), dtype=torch.float64)
            tokens = torch.tensor([TOKENS])

            def loss(model=model, tokens=tokens):
                return torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])

            loss().backward()
            slots = ["ffn.router", *SLOTS] + (
                ["attn.sinks", "ffn.down_exps.bias"] if family == "gpt_oss" else []
            )
            for slot in slots:
                with self.subTest(f"{family}: {slot}"), torch.no_grad():
                    parameter = model.stored[model.topology.layers[0][slot].tensor]
                    place = parameter.grad.abs().argmax()
                    ends = []
                    for step in (1e-6, -2e-6):
                        parameter.view(-1)[place] += step
                        ends.append(loss().item())
                    parameter.view(-1)[place] += 1e-6
                    wanted = parameter.grad.view(-1)[place].item()
                    self.assertAlmostEqual((ends[0] - ends[1]) / 2e-6 / wanted, 1, places=4)

    def test_what_has_not_changed_is_saved_bit_for_bit(self):
        for family in FAMILIES:
            for type in (None, "f32"):
                with self.subTest(family):
                    before = refold.open(self.source(family))
                    if family == "mixtral":
                        for slot in SLOTS:
                            before.layers[2][slot] = parts_of(before, slot)
                    wanted = refold.open(before.save(self.path("before.gguf"), overwrite=True))
                    file = refold.torch.Model(wanted).save(self.path("after.gguf"), type=type, overwrite=True)
                    after = refold.open(file)
                    self.assertEqual(after.topology.to_json(), wanted.topology.to_json())
                    self.assertEqual(list(after.tensors), list(wanted.tensors))
                    for name, tensor in wanted.tensors.items():
                        self.assertEqual(
                            (after.tensors[name].type, after.tensors[name].shape), (tensor.type, tensor.shape)
                        )
                        np.testing.assert_array_equal(after.tensors[name].bytes(), tensor.bytes())

    def test_batches_with_padding_and_a_cache(self):
        for family in ("qwen3_moe", "gpt_oss"):
            model = refold.torch.load(self.source(family))
            with self.subTest(family), torch.no_grad():
                check_batches_and_cache(model, TOKENS)

    def test_bfloat16(self):
        for family in ("mixtral", "gpt_oss"):
            model = refold.torch.load(self.source(family), dtype=torch.bfloat16)
            with torch.no_grad():
                found = model(torch.tensor([TOKENS]))[0]
            self.assertEqual(found.dtype, torch.bfloat16)
            expected = refold.load(self.source(family), threads=1, f32=True, context=64).logits(TOKENS)
            # A token in ten may use another expert.
            self.assertLess(np.median(np.abs(found.float().numpy() - expected)), 0.05)


@unittest.skipUnless(torch, "torch is not installed")
class RouteTest(unittest.TestCase):
    def test_the_largest_scores_and_of_equal_ones_the_first(self):
        scores = torch.tensor([[1.0, 3.0, 3.0, 3.0], [0.0, -1.0, 2.0, 0.0]])
        for normalized in (True, False):
            routes = refold.torch._experts.route(scores, 2, normalized)
            self.assertEqual(routes.experts.tolist(), [0, 1, 2, 2])
            self.assertEqual(routes.tokens.tolist(), [1, 0, 0, 1])
            self.assertEqual(routes.counts, [1, 1, 2, 0])
            over = scores.gather(1, torch.tensor([[1, 2], [2, 0]])) if normalized else scores
            sums = over.exp().sum(1)
            wanted = torch.stack([scores[1, 0], scores[0, 1], scores[0, 2], scores[1, 2]]).exp()
            torch.testing.assert_close(routes.weights, wanted / sums[routes.tokens])


@unittest.skipUnless(torch and transformers, "torch or transformers is not installed")
class BridgesTest(MixtureTest):
    """A mixture in transformers, PEFT and lm-evaluation-harness."""

    def setUp(self):
        super().setUp()
        self.file = self.source("mixtral")
        self.engine = refold.load(self.file, threads=1, f32=True, context=128)
        self.prepared = refold.transformers.prepare(self.file, self.path("prepared"))

    def test_generation_is_that_of_the_engine(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.prepared, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        prompts = ["The licence is", "Copies of"]
        given = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        found = model.generate(**given, max_new_tokens=12, do_sample=False, eos_token_id=None)
        for row, prompt in zip(found, prompts):
            expected = self.engine.generate(prompt, max_tokens=12, ignore_eos=True).tokens
            self.assertEqual(row[-12:].tolist(), expected)
        model.save_pretrained(self.path("saved"))
        again = transformers.AutoModelForCausalLM.from_pretrained(self.path("saved"))
        with torch.no_grad():
            torch.testing.assert_close(again(**given).logits, model(**given).logits, atol=0, rtol=0)

    @unittest.skipUnless(peft, "peft is not installed")
    def test_peft_adapts_routers_and_names_experts_it_cannot(self):
        tokens = torch.tensor([TOKENS])
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        lora = peft.LoraConfig(r=2, target_modules=["attn.v", "ffn.router"], task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(model, lora)
        optimizer = torch.optim.Adam([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            adapted(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        stored = refold.transformers.with_lora(adapted)
        self.assertIsInstance(stored.layers[1]["ffn.router"], refold.Plus)
        stored.save(self.path("adapted.gguf"))
        found = refold.load(self.path("adapted.gguf"), threads=1, f32=True, context=64).logits(TOKENS)
        with torch.no_grad():
            np.testing.assert_allclose(found, adapted.eval()(tokens).logits[0].numpy(), atol=1e-4)
        model = transformers.AutoModelForCausalLM.from_pretrained(self.prepared)
        with self.assertRaisesRegex(ValueError, "SlotExperts"):
            peft.get_peft_model(model, peft.LoraConfig(target_modules=["ffn.up_exps"], task_type="CAUSAL_LM"))

    @unittest.skipUnless(harness, "lm-eval is not installed")
    def test_both_models_of_the_harness_agree(self):
        from lm_eval.api.instance import Instance
        from lm_eval.models.huggingface import HFLM
        from refold.lm_eval import RefoldLM

        asked = [("The licence", " is free"), ("Copies of", " the text"), ("", "A text")]
        models = (
            RefoldLM(self.file, f32=True, threads=1, max_length=64),
            HFLM(pretrained=self.prepared, dtype="float32", device="cpu", batch_size=2, max_length=64),
        )
        answers = [
            model.loglikelihood(
                [Instance("loglikelihood", {}, given, i) for i, given in enumerate(asked)], disable_tqdm=True
            )
            for model in models
        ]
        for ours, theirs in zip(*answers):
            self.assertAlmostEqual(ours[0], theirs[0], places=3)
            self.assertEqual(ours[1], theirs[1])


if __name__ == "__main__":
    unittest.main()

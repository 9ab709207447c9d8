import copy
import os
import unittest

import numpy as np
import refold
from fixtures import CALIBRATION, FIXTURES, LLAMA, TEXT, FolderTest, golden, needs

torch = needs("torch")
if torch:
    import refold.torch

TOKENS = [5, 6, 7, 8, 90, 17, 33, 2, 411, 7, 7, 19, 250, 3]
MULTI_HEAD = os.path.join(FIXTURES, "llama", "model.gguf")


def families():
    """The decoders of tests/fixtures/hf."""
    folder = os.path.join(FIXTURES, "hf")
    return [
        name
        for name in sorted(os.listdir(folder))
        if os.path.exists(os.path.join(folder, name, "config.json"))
        and refold.open(os.path.join(folder, name)).config["causal"]
        and "logits.0" in golden("hf", name)[1]
    ]


def check_batches_and_cache(model, tokens):
    """That a row and its first nine tokens have the logits of each alone in a batch with padding on the left, and the row by pieces.

    Returns the logits of both alone.
    """
    close = {"atol": 1e-5, "rtol": 0}
    alone = [model(torch.tensor([row]))[0] for row in (tokens, tokens[:9])]
    padding = len(tokens) - 9
    mask = torch.ones(2, len(tokens), dtype=torch.long)
    mask[1, :padding] = 0
    together = model(torch.tensor([tokens, [0] * padding + tokens[:9]]), mask)
    torch.testing.assert_close(together[0], alone[0], **close)
    torch.testing.assert_close(together[1, padding:], alone[1], **close)
    cache = KeysAndValues()
    pieces = [model(torch.tensor([tokens[a:b]]), cache=cache) for a, b in [(0, 5), (5, 6), (6, len(tokens))]]
    torch.testing.assert_close(torch.cat(pieces, 1)[0], alone[0], **close)
    return alone


class FamiliesTest(unittest.TestCase):
    @unittest.skipUnless(torch, "torch is not installed")
    def test_logits_are_the_golden_ones(self):
        compared = 0
        for name in families():
            with self.subTest(name):
                model = refold.torch.load(os.path.join(FIXTURES, "hf", name))
                facts, arrays = golden("hf", name)
                for i, row in enumerate(facts["rows"]):
                    if f"logits.{i}" not in arrays:
                        continue
                    with torch.no_grad():
                        found = model(torch.tensor([row]))[0].numpy()
                    np.testing.assert_allclose(found, arrays[f"logits.{i}"], atol=1e-4)
                compared += 1
        self.assertGreater(compared, 20)


@unittest.skipUnless(torch, "torch is not installed")
class TorchTest(FolderTest):
    def make(self, *steps, source=LLAMA, name="made.gguf", **options):
        refold.compress(source, list(steps), self.path(name), threads=1, overwrite=True, **options)
        return self.path(name)

    def test_logits_are_those_of_the_engine(self):
        text = {"calibration": CALIBRATION, "calibration_tokens": 4096}
        for steps, source, options in [
            ([{"method": "direct_share", "ratio": 0.5}], LLAMA, {}),
            ([{"method": "seq", "part": 0.6, "share": "layer"}], LLAMA, {}),
            ([{"method": "laser", "slots": "all", "rank": 8}], LLAMA, {}),
            ([{"method": "tensorllm", "ranks": "16,6,3"}], MULTI_HEAD, {}),
            ([{"method": "tensorllm", "ranks": "16,6,3"}], LLAMA, {}),
            ([{"method": "tensorllm", "ranks": "16,6,3", "kv": "separate"}], LLAMA, {}),
            ([{"method": "trawl", "rank": 8}], LLAMA, {}),
            ([{"method": "relax", "loops": 2, "rank": 3}], LLAMA, {}),
            ([{"method": "uniattn", "superblocks": "2-3", "compensation": "lsq"}], LLAMA, text),
            ([{"method": "cla", "superblocks": "1-3"}], LLAMA, {}),
            ([{"method": "prefix", "length": 3}], LLAMA, {}),
            ([{"method": "prefix", "length": 3, "form": "kv"}], LLAMA, {}),
            ([{"method": "drop", "layers": "0", "modules": "attention"}], LLAMA, {}),
            ([{"method": "drop", "layers": "3", "modules": "ffn"}], LLAMA, {}),
            ([{"method": "prune_magnitude", "ratio": 0.5}], LLAMA, {}),
            ([{"method": "quantize", "type": "q8_0", "types": "token_embd=q8_0:64,q4_0"}], LLAMA, text),
        ]:
            with self.subTest(steps):
                path = self.make(*steps, source=source, **options)
                model = refold.torch.load(path)
                expected = refold.load(path, threads=1, f32=True, context=64).logits(TOKENS)
                with torch.no_grad():
                    found = model(torch.tensor([TOKENS]))[0].numpy()
                np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_a_real_model(self):
        try:
            refold.inspect("smollm2-135m-instruct")
        except refold.UsageError as error:
            self.skipTest(str(error))
        path = self.make({"method": "direct_share", "ratio": 0.3}, source="smollm2-135m-instruct")
        engine = refold.load(path, f32=True, context=128)
        with open(TEXT, encoding="utf-8") as file:
            tokens = engine.tokenize(file.read(2500))[:128]
        expected = engine.logits(tokens)
        with torch.no_grad():
            found = refold.torch.load(path)(torch.tensor([tokens]))[0].numpy()
        self.assertLess(np.abs(found - expected).max(), 1e-5 * np.abs(expected).max())
        self.assertLess(np.abs(found - expected).mean(), 1e-4)

    def test_every_stored_tensor_is_one_parameter(self):
        path = self.make({"method": "seq", "part": 0.6, "share": "layer"})
        stored = refold.open(path)
        model = refold.torch.load(path)
        names = [name for name, _ in model.named_parameters()]
        self.assertEqual(sorted(names), sorted("stored." + name for name in stored.tensors))
        self.assertEqual(sum(p.numel() for p in model.parameters()), stored.inspect()["stored"]["parameters"])
        shared = [n for n in stored.tensors if len({layer for layer, _ in stored.topology.users(n)}) > 1]
        first, second = {layer for layer, slot in stored.topology.users(shared[0])}
        slot = stored.topology.users(shared[0])[0][1]
        self.assertIs(
            model.layers[first].get_submodule(slot).weight, model.layers[second].get_submodule(slot).weight
        )
        self.assertIn("SlotLinear", repr(model))
        # Copies share among themselves, not with the first.
        other = copy.deepcopy(model)
        a, b = (other.layers[layer].get_submodule(slot).weight for layer in (first, second))
        self.assertIs(a, b)
        self.assertIsNot(a, model.layers[first].get_submodule(slot).weight)

    def test_batches_with_padding_and_a_cache(self):
        path = self.make({"method": "uniattn", "superblocks": "2-3"}, {"method": "drop", "layers": "0"})
        model = refold.torch.load(path)
        with torch.no_grad():
            alone = check_batches_and_cache(model, TOKENS)
            mask = torch.ones(2, len(TOKENS), dtype=torch.long)
            mask[1, 9:] = 0
            right = model(torch.tensor([TOKENS, TOKENS[:9] + [0] * 5]), mask)
            torch.testing.assert_close(right[1, :9], alone[1], atol=1e-5, rtol=0)
            torch.testing.assert_close(model(torch.tensor([TOKENS]), last=1)[0], alone[0][-1:])

    def test_windows_with_padding_and_a_cache(self):
        name = "gemma3"
        model = refold.torch.load(os.path.join(FIXTURES, "hf", name))
        row = max(golden("hf", name)[0]["rows"], key=len)
        self.assertGreater(len(row), max(model.config["windows"]) + 8)
        with torch.no_grad():
            alone = model(torch.tensor([row]))[0]
            mask = torch.tensor([[0] * 4 + [1] * len(row)])
            padded = model(torch.tensor([[0] * 4 + row]), mask)[0, 4:]
            torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)
            cache = KeysAndValues()
            model(torch.tensor([row[:-3]]), cache=cache)
            torch.testing.assert_close(
                model(torch.tensor([row[-3:]]), cache=cache)[0], alone[-3:], atol=1e-5, rtol=0
            )

    def test_training_keeps_the_sharing(self):
        path = self.make({"method": "direct_share", "ratio": 0.5})
        model = refold.torch.load(path)
        tokens = torch.tensor([TOKENS])
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(5):
            loss = torch.nn.functional.cross_entropy(model(tokens)[0, :-1], tokens[0, 1:])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.assertLess(losses[-1], losses[0] - 0.5)
        model.save(self.path("trained.gguf"))
        saved = refold.open(self.path("trained.gguf"))
        self.assertEqual(saved.topology.to_json(), refold.open(path).topology.to_json())
        self.assertEqual(saved.provenance["recipe"], "trained with PyTorch")
        self.assertIn("direct_share", saved.provenance["source"]["provenance"]["recipe"])
        with torch.no_grad():
            expected = model(tokens)[0].numpy()
        found = refold.load(self.path("trained.gguf"), threads=1, f32=True, context=64).logits(TOKENS)
        np.testing.assert_allclose(found, expected, atol=1e-4)

    def test_only_what_has_changed_is_rounded(self):
        source = os.path.join(FIXTURES, "quantized", "q4_0.gguf")
        model = refold.torch.load(source)
        name = "blk.1.ffn_down.weight"
        with torch.no_grad():
            model.stored[name].mul_(1.01)
        before = refold.open(source)
        for type, stored_as in [(None, "Q4_0"), ("f32", "F32")]:
            after = model.to_refold(type)
            self.assertEqual(after.tensors[name].type, stored_as)
            for other in set(before.tensors) - {name}:
                np.testing.assert_array_equal(after.tensors[other].bytes(), before.tensors[other].bytes())
        np.testing.assert_allclose(after.tensors[name].numpy(), model.stored[name].detach().numpy())

    def test_bfloat16(self):
        model = refold.torch.load(LLAMA, dtype=torch.bfloat16)
        with torch.no_grad():
            found = model(torch.tensor([TOKENS]))[0]
        self.assertEqual(found.dtype, torch.bfloat16)
        expected = refold.load(LLAMA, threads=1, f32=True, context=64).logits(TOKENS)
        self.assertLess(np.abs(found.float().numpy() - expected).mean(), 0.05)
        self.assertEqual(len(model.to_refold().tensors), len(refold.open(LLAMA).tensors))

    def test_what_is_not_covered_is_refused_by_name(self):
        with self.assertRaisesRegex(refold.UnsupportedError, "encoder"):
            refold.torch.load(os.path.join(FIXTURES, "hf", "bert_encoder"))
        model = refold.open(LLAMA)
        model.config["n_embedding"] = 8
        with self.assertRaisesRegex(refold.UnsupportedError, "n_embedding"):
            refold.torch.Model(model)


class KeysAndValues:
    """A cache of transformers' form."""

    def __init__(self):
        self.layers = []

    def get_seq_length(self):
        return self.layers[0][1].shape[2] if self.layers else 0

    def update(self, keys, values, layer):
        if layer == len(self.layers):
            self.layers.append((keys, values))
        else:
            self.layers[layer] = tuple(torch.cat(pair, 2) for pair in zip(self.layers[layer], (keys, values)))
        return self.layers[layer]


if __name__ == "__main__":
    unittest.main()

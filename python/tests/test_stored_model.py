import json
import os
import unittest

import numpy as np
import refold
from fixtures import FIXTURES, LLAMA, FolderTest, golden

TOKENS = [5, 6, 7, 8, 90, 17]
SHARE = [{"method": "direct_share", "ratio": 0.5}]


def logits(path):
    return refold.load(path, threads=1, f32=True, context=64).logits(TOKENS)


class StoredModelTest(FolderTest):
    def make(self, steps, source=LLAMA, name="made.gguf"):
        refold.compress(source, steps, self.path(name), threads=1)
        return refold.open(self.path(name))

    def test_configuration_and_topology(self):
        model = refold.open(LLAMA)
        self.assertEqual(model.path, LLAMA)
        c = model.config
        self.assertEqual((c["family"], c["n_embd"], c["n_head"], c["n_head_kv"]), ("llama", 64, 4, 2))
        self.assertEqual((c["norm"], c["activation"], c["causal"]), ("rms", "silu", True))
        self.assertEqual(c["rope"]["kind"], "interleaved")
        self.assertEqual(len(model.layers), 4)
        self.assertEqual(model.layers[2]["ffn.up"], refold.Dense("blk.2.ffn_up.weight"))
        self.assertEqual(model.slots["output"], model.slots["token_embd"])
        self.assertIsNone(model.layers[0].attention)
        self.assertEqual(model.topology.loops, 1)
        self.assertEqual(model.topology.users("token_embd.weight"), [(None, "output"), (None, "token_embd")])
        self.assertEqual(set(model.topology.tensors()), set(model.tensors))
        self.assertIsNone(model.provenance)

    def test_expressions_of_methods(self):
        heads = self.make(SHARE)
        kinds = {type(e) for layer in heads.layers for e in layer.values()}
        self.assertIn(refold.Heads, kinds)
        shared = [n for n in heads.tensors if len({layer for layer, _ in heads.topology.users(n)}) > 1]
        self.assertTrue(shared)
        self.assertIn("direct_share", heads.provenance["recipe"])
        self.assertEqual(heads.provenance["source"]["file"], "model.gguf")
        shared = self.make([{"method": "uniattn", "superblocks": "2-3"}], name="unified.gguf")
        sources = [layer.attention for layer in shared.layers if layer.attention]
        self.assertTrue(sources)
        self.assertEqual(sources[0].kind, "probabilities")
        looped = self.make([{"method": "relax", "loops": 2, "rank": 2}], name="looped.gguf")
        self.assertEqual(looped.topology.loops, 2)
        self.assertIsInstance(looped.layers[3]["attn.q"], refold.Plus)
        self.assertEqual(looped.layers[3]["attn.q"].base, looped.layers[1]["attn.q"].base)
        cores = self.make([{"method": "tensorllm", "ranks": "8,4,3"}],
                          os.path.join(FIXTURES, "llama", "model.gguf"), "cores.gguf")  # fmt: skip
        self.assertIsInstance(cores.layers[3]["attn.o"], refold.Tucker)
        for model in (heads, shared, looped, cores):
            again = refold.Topology.from_json(model.topology.to_json())
            for layer, expected in zip(again.layers, model.layers):
                self.assertEqual(dict(layer), dict(expected))
                self.assertEqual(layer.attention, expected.attention)
            model.check()

    def test_tensors_are_views_of_the_file(self):
        model = refold.open(LLAMA)
        tensor = model.tensors["blk.0.attn_q.weight"]
        self.assertEqual((tensor.type, tensor.shape, tensor.nbytes), ("F32", (64, 64), 64 * 64 * 4))
        values = tensor.numpy()
        self.assertEqual((values.dtype, values.shape), (np.float32, (64, 64)))
        self.assertFalse(values.flags.writeable)
        self.assertEqual(values.ctypes.data, tensor.numpy().ctypes.data)  # the same bytes, not a copy of them
        np.testing.assert_array_equal(np.asarray(tensor), values)
        copy = tensor.float32()
        copy[:] = 0
        self.assertTrue(values.any())
        del model, tensor
        self.assertTrue(np.isfinite(values).all())  # the array keeps the file mapped
        with self.assertRaises(KeyError):
            refold.open(LLAMA).tensors["blk.9.attn_q.weight"]

    def test_quantized_tensors_are_dequantized(self):
        exact = refold.open(LLAMA).tensors["blk.1.ffn_up.weight"].numpy()
        model = refold.open(os.path.join(FIXTURES, "quantized", "q8_0.gguf"))
        tensor = model.tensors["blk.1.ffn_up.weight"]
        self.assertEqual(tensor.type, "Q8_0")
        self.assertEqual(tensor.bytes().shape, (tensor.nbytes,))
        found = tensor.numpy()
        self.assertEqual(found.shape, exact.shape)
        self.assertLess(np.abs(found - exact).max(), 0.01 * np.abs(exact).max())
        half = refold.open(os.path.join(FIXTURES, "quantized", "f16.gguf")).tensors["blk.1.ffn_up.weight"]
        self.assertEqual(half.numpy().dtype, np.float16)
        np.testing.assert_array_equal(half.numpy().astype(np.float32), half.float32())

    def test_matrices_of_slots(self):
        model = self.make(SHARE)
        found = 0
        for number, layer in enumerate(model.layers):
            expression = layer["attn.q"]
            if not isinstance(expression, refold.Heads):
                continue
            size = model.config["head_dim"]
            rows = [
                model.tensors[run.tensor].numpy()[run.first * size : (run.first + run.count) * size]
                for run in expression.runs
            ]
            np.testing.assert_array_equal(model.matrix(number, "attn.q"), np.concatenate(rows))
            found += 1
        self.assertGreater(found, 0)
        self.assertEqual(model.matrix(None, "output").shape, (model.config["n_vocab"], 64))
        for layer, slot in [(0, "attn.z"), (0, "attn.comp"), (9, "attn.q")]:
            with self.assertRaises(refold.Error):
                model.matrix(layer, slot)

    def test_edits_are_saved(self):
        model = refold.open(LLAMA)
        model.layers[3]["attn.q"] = model.layers[2]["attn.q"]
        model.layers[3]["ffn.down"] = refold.LowRank("blk.3.down.u", "blk.3.down.v")
        u, v = np.random.default_rng(1).normal(size=(2, 4, 64)) / 8
        wide = np.random.default_rng(2).normal(size=(4, model.config["n_ff"])) / 8
        model.tensors["blk.3.down.u"] = np.ascontiguousarray(u.T)
        model.set_tensor("blk.3.down.v", wide, "f32")
        model.set_tensor("blk.1.ffn_up.weight", model.tensors["blk.1.ffn_up.weight"].numpy(), "q8_0")
        np.testing.assert_allclose(
            model.matrix(3, "ffn.down"), u.T.astype(np.float32) @ wide.astype(np.float32), atol=1e-6
        )
        before = model.copy()
        model.tensors["blk.0.ffn_norm.weight"] = np.full(64, 2.0)
        self.assertNotEqual(before.tensors["blk.0.ffn_norm.weight"].numpy()[0], 2)
        self.assertEqual(model.save(self.path("edited.gguf"), recipe="by hand"), self.path("edited.gguf"))
        again = refold.open(self.path("edited.gguf"))
        self.assertNotIn("blk.3.attn_q.weight", again.tensors)  # nothing reads it any more
        self.assertEqual(again.layers[3]["attn.q"], refold.Dense("blk.2.attn_q.weight"))
        self.assertEqual(again.tensors["blk.1.ffn_up.weight"].type, "Q8_0")
        np.testing.assert_array_equal(again.tensors["blk.0.ffn_norm.weight"].numpy(), np.full(64, 2.0))
        self.assertEqual(again.provenance["recipe"], "by hand")
        self.assertEqual(again.inspect()["stored"]["parameters"], model.inspect()["stored"]["parameters"])
        del v
        self.assertFalse(np.allclose(logits(self.path("edited.gguf")), logits(LLAMA)))
        with self.assertRaises(refold.UsageError):
            model.save(self.path("edited.gguf"))

    def test_an_unchanged_model_is_saved_as_it_was(self):
        for steps in (
            SHARE,
            [{"method": "uniattn", "superblocks": "2-3"}],
            [{"method": "recursive", "loops": 2}],
        ):
            model = self.make(steps, name=steps[0]["method"] + ".gguf")
            model.save(self.path("same.gguf"), provenance=model.provenance, overwrite=True)
            with open(model.path, "rb") as a, open(self.path("same.gguf"), "rb") as b:
                self.assertEqual(a.read(), b.read())

    def test_directories_are_opened_too(self):
        folder = os.path.join(FIXTURES, "hf", "llama_gqa")
        model = refold.open(folder)
        facts, arrays = golden("hf", "llama_gqa")
        self.assertEqual(model.matrix(None, "token_embd").shape[1], model.config["n_embd"])
        tensor = model.tensors["blk.0.attn_q.weight"]  # rearranged when it is read
        np.testing.assert_array_equal(tensor.numpy(), model.matrix(0, "attn.q"))
        self.assertEqual(tensor.bytes().nbytes, tensor.nbytes)

    def test_what_does_not_fit_is_refused(self):
        model = refold.open(LLAMA)
        model.layers[1]["attn.q"] = "blk.9.attn_q.weight"
        with self.assertRaisesRegex(refold.InputError, "layer 1 attn.q"):
            model.check()
        with self.assertRaisesRegex(refold.InputError, "layer 1 attn.q"):
            model.save(self.path("never.gguf"))
        self.assertFalse(os.path.exists(self.path("never.gguf")))
        model = refold.open(LLAMA)
        model.tensors["blk.1.attn_q.weight"] = np.zeros((64, 32))
        with self.assertRaisesRegex(refold.InputError, "blk.1.attn_q.weight"):
            model.check()
        model = refold.open(LLAMA)
        del model.layers[0]["ffn.up"]
        with self.assertRaises(refold.InputError):
            model.check()
        model = refold.open(LLAMA)
        model.layers[2]["attn.z"] = "blk.2.attn_q.weight"
        with self.assertRaisesRegex(refold.InputError, "attn.z"):
            model.check()
        for values, type, expected in [
            (np.zeros(5), "q9", refold.UsageError),
            (np.zeros((3, 5)), "q8_0", refold.InputError),
            (np.array(1.0), None, refold.InputError),
            (np.array(["a"]), None, refold.InputError),
        ]:
            with self.assertRaises(expected):
                model.set_tensor("x", values, type)
        with self.assertRaises(TypeError):
            model.layers[0]["attn.q"] = 3

    def test_the_tokenizer_is_written(self):
        refold.open(LLAMA).save_tokenizer(self.folder)
        with open(self.path("tokenizer.json")) as file:
            self.assertIn("model", json.load(file))


if __name__ == "__main__":
    unittest.main()

import os
import unittest

import numpy as np
import refold
from fixtures import CALIBRATION, LLAMA, FolderTest

SHARE = {"method": "direct_share", "ratio": 0.25}


@refold.method("test_scale")
def scale(model, *, slot="output_norm", factor: float = 1.0):
    name = model.slots[slot].tensor
    model.tensors[name] = factor * model.tensors[name].float32()


@refold.method("test_replace")
def replace(model):
    out = model.copy()
    out.layers[3]["ffn.down"] = out.layers[2]["ffn.down"]
    return out


@refold.method("test_broken")
def broken(model, fail="answer"):
    if fail == "answer":
        return 7
    if fail == "raise":
        raise KeyError("mine")
    model.layers[0]["attn.q"] = "nothing"


class MethodTest(FolderTest):
    def test_steps_in_python_among_built_in_ones(self):
        output = self.path("made.gguf")
        refit = {"method": "refit"}
        steps = [{"method": "test_scale", "factor": 0.5}, SHARE, {"method": "test_replace"}, refit]
        text = {"calibration": CALIBRATION, "calibration_tokens": 4096, "threads": 1}
        parts = []
        done = refold.compress(LLAMA, steps, output, progress=lambda p: parts.append(p.part), **text)
        self.assertEqual([step.method for step in done.steps], [step["method"] for step in steps])
        self.assertLess(done.steps[2].cost.bytes, done.steps[1].cost.bytes)
        self.assertIn("refit", parts)
        model = refold.open(output)
        self.assertEqual(model.inspect()["stored"]["bytes"], done.after.bytes)
        self.assertEqual(model.layers[3]["ffn.down"], refold.Dense("blk.2.ffn_down.weight"))
        np.testing.assert_allclose(
            model.tensors["output_norm.weight"].numpy(),
            refold.open(LLAMA).tensors["output_norm.weight"].numpy() / 2,
        )
        self.assertEqual(os.listdir(self.folder), ["made.gguf"])
        # The same by hand.
        first = refold.open(LLAMA)
        scale(first, factor=0.5)
        first.save(self.path("1.gguf"))
        refold.compress(self.path("1.gguf"), [SHARE], self.path("2.gguf"), threads=1)
        replace(refold.open(self.path("2.gguf"))).save(self.path("3.gguf"))
        refold.compress(self.path("3.gguf"), [refit], self.path("4.gguf"), original=LLAMA, **text)
        by_hand = refold.open(self.path("4.gguf"))
        self.assertEqual(set(by_hand.tensors), set(model.tensors))
        for name in model.tensors:
            np.testing.assert_array_equal(model.tensors[name].bytes(), by_hand.tensors[name].bytes())

    def test_the_provenance_is_one_recipe_on_the_source(self):
        output = self.path("made.gguf")
        steps = [SHARE, {"method": "test_scale"}, {"method": "refit"}]
        done = refold.compress(
            LLAMA, {"steps": steps}, output, calibration=CALIBRATION, calibration_tokens=4096, threads=1
        )
        provenance = refold.open(output).provenance
        self.assertEqual(provenance["recipe"], done.recipe)
        self.assertEqual(provenance["source"]["file"], "model.gguf")
        self.assertNotIn("provenance", provenance["source"])
        self.assertEqual(provenance["calibration"]["tokens"], 4096)
        self.assertEqual(done.recipe.count("steps:"), 1)
        self.assertRegex(
            done.recipe,
            '(?s)method: direct_share\n    ratio: 0.25\n.*  - method: "test_scale"  # in Python: test_method.scale\n'
            '    slot: "output_norm"\n    factor: 1.0\n  - method: refit\n',
        )

    def test_mistakes(self):
        output = self.path("never.gguf")
        for steps, expected, words in [
            ([{"method": "test_scale", "faktor": 2}], refold.UsageError, "faktor"),
            ([SHARE, {"method": "test_scale", "factor": {1, 2}}], refold.UsageError, "test_scale"),
            ([{"method": "test_broken"}], refold.UsageError, "test_broken.*int"),
            ([{"method": "test_broken", "fail": "raise"}], KeyError, "mine"),
            ([{"method": "test_broken", "fail": "slot"}], refold.InputError, "nothing"),
            ([{"method": "test_replace"}, {"method": "no_such"}], refold.UsageError, "no_such"),
        ]:
            with self.subTest(steps), self.assertRaisesRegex(expected, words):
                refold.compress(LLAMA, steps, output)
            self.assertEqual(os.listdir(self.folder), [])
        with self.assertRaisesRegex(refold.UsageError, "direct_share"):
            refold.method("direct_share")
        with self.assertRaises(refold.UsageError):
            refold.plan(LLAMA, [{"method": "test_replace"}])

    def test_existing_outputs_stay(self):
        output = self.path("made.gguf")
        refold.compress(LLAMA, [{"method": "test_replace"}], output)
        with self.assertRaises(refold.UsageError):
            refold.compress(LLAMA, [{"method": "test_replace"}], output)
        refold.compress(LLAMA, [{"method": "test_replace"}], output, overwrite=True)


if __name__ == "__main__":
    unittest.main()

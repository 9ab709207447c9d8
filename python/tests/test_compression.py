import os
import unittest

import numpy as np
import refold
from fixtures import CALIBRATION, FIXTURES, LLAMA, FolderTest, program

STEPS = [{"method": "direct_share", "ratio": 0.25}]
YAML = "steps:\n  - method: direct_share\n    ratio: 0.25\n"


class CompressionTest(FolderTest):
    def test_a_plan_is_what_is_written(self):
        planned = refold.plan(LLAMA, STEPS)
        done = refold.compress(LLAMA, STEPS, self.path("small.gguf"))
        self.assertEqual(planned.after, done.after)
        self.assertLess(done.after.bytes, done.before.bytes)
        self.assertEqual([step.method for step in done.steps], ["direct_share"])
        facts = refold.inspect(self.path("small.gguf"))
        self.assertTrue(facts["shares"])
        self.assertEqual(facts["stored"]["bytes"], done.after.bytes)

    def test_recipes_come_with_the_package(self):
        folder = os.getcwd()
        os.chdir(self.path("."))
        try:
            self.assertIn("direct_share", refold.plan(LLAMA, "recipes/direct_share_30.yaml").recipe)
        finally:
            os.chdir(folder)

    def test_forms_of_a_recipe(self):
        file = self.path("recipe.yaml")
        with open(file, "w") as out:
            out.write(YAML)
        expected = refold.plan(LLAMA, STEPS)
        for recipe in [{"steps": STEPS}, YAML, file, expected.recipe]:
            self.assertEqual(refold.plan(LLAMA, recipe).after, expected.after)

    def test_the_file_is_that_of_the_program(self):
        refold.compress(LLAMA, STEPS, self.path("here.gguf"))
        program(
            "compress",
            LLAMA,
            "-o",
            self.path("there.gguf"),
            "--method",
            "direct_share",
            "--set",
            "ratio=0.25",
        )
        tokens = [5, 6, 7, 8]
        here, there = (
            refold.load(self.path(name), threads=1, f32=True).logits(tokens)
            for name in ("here.gguf", "there.gguf")
        )
        np.testing.assert_array_equal(here, there)

    def test_calibrated_steps_report_progress(self):
        reports = []
        done = refold.compress(
            LLAMA,
            [*STEPS, {"method": "refit"}],
            self.path("refit.gguf"),
            calibration=CALIBRATION,
            calibration_tokens=4096,
            threads=1,
            progress=reports.append,
        )
        self.assertEqual([step.method for step in done.steps], ["direct_share", "refit"])
        self.assertIn("refit", {report.part for report in reports})
        for report in reports:
            self.assertLessEqual(report.done, report.total or report.done)
        with self.assertRaises(refold.UsageError):
            refold.compress(LLAMA, [{"method": "refit"}], self.path("none.gguf"))

    def test_what_a_callback_raises_cancels(self):
        def stop(_):
            raise KeyboardInterrupt

        output = self.path("never.gguf")
        with self.assertRaises(KeyboardInterrupt):
            refold.compress(
                LLAMA,
                [*STEPS, {"method": "refit"}],
                output,
                calibration=CALIBRATION,
                calibration_tokens=30000,
                threads=1,
                progress=stop,
            )
        self.assertFalse(os.path.exists(output))

    def test_existing_outputs_stay(self):
        output = self.path("small.gguf")
        refold.compress(LLAMA, STEPS, output)
        with self.assertRaises(refold.UsageError):
            refold.compress(LLAMA, STEPS, output)
        refold.compress(LLAMA, STEPS, output, overwrite=True)

    def test_quantize(self):
        done = refold.quantize(LLAMA, "q8_0", self.path("q8_0.gguf"), threads=1)
        self.assertLess(done.after.bytes, done.before.bytes / 3)
        refold.load(self.path("q8_0.gguf"), threads=1).generate("The", max_tokens=2)
        with self.assertRaises(refold.UsageError):
            refold.quantize(LLAMA, "q9", self.path("no.gguf"))

    def test_saved_and_exported_models_compute_the_same(self):
        tokens = [5, 6, 7, 8]
        source = os.path.join(FIXTURES, "llama", "model.gguf")
        refold.compress(source, STEPS, self.path("small.gguf"))
        model = refold.load(self.path("small.gguf"), threads=1, f32=True)
        expected = model.logits(tokens)
        self.assertEqual(model.save(self.path("saved.gguf")), self.path("saved.gguf"))
        model.export(self.path("stock.gguf"), format="gguf")
        model.export(self.path("hf"), format="hf")
        self.assertTrue(os.path.exists(self.path("hf/config.json")))
        for name in ("saved.gguf", "stock.gguf", "hf"):
            found = refold.load(self.path(name), threads=1, f32=True).logits(tokens)
            np.testing.assert_allclose(found, expected, atol=1e-4)
        self.assertTrue(refold.inspect(self.path("saved.gguf"))["shares"])
        self.assertFalse(refold.inspect(self.path("stock.gguf"))["shares"])
        with self.assertRaises(refold.UsageError):
            model.export(self.path("what"), format="what")


if __name__ == "__main__":
    unittest.main()

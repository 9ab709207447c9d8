import json
import os
import shutil
import unittest

import numpy as np
import refold
from fixtures import FIXTURES, FolderTest, golden


class EncoderTest(FolderTest):
    def setUp(self):
        super().setUp()
        for folder, names in [
            ("hf/bert_encoder", ["config.json", "model.safetensors"]),
            (
                "tokenizers/wordpiece_bert",
                ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"],
            ),
        ]:
            for name in names:
                shutil.copy(os.path.join(FIXTURES, folder, name), self.folder)
        self.encoder = refold.Encoder(self.folder, threads=1, f32=True)

    def test_hidden_states_are_the_golden_ones(self):
        facts, arrays = golden("hf", "bert_encoder")
        compared = 0
        for i, row in enumerate(facts["rows"]):
            if (
                f"last_hidden_state.{i}" in arrays
                and not any(row["token_type_ids"])
                and all(row["attention_mask"])
            ):
                found = self.encoder.hidden_states(row["input_ids"])
                np.testing.assert_allclose(found, arrays[f"last_hidden_state.{i}"], atol=1e-4)
                compared += 1
        self.assertGreater(compared, 0)

    def test_embeddings(self):
        texts = ["A cat sat.", "A kitten sat.", "Taxes"]
        found = self.encoder.embed(texts)
        self.assertEqual(found.shape, (3, self.encoder.inspect()["n_embd"]))
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(self.encoder.embed(texts[1]), found[1], atol=1e-6)
        states = self.encoder.hidden_states(texts[0])
        mean = self.encoder.embed(texts[0], normalize=False)
        np.testing.assert_allclose(mean, states.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(
            self.encoder.embed(texts[0], pooling="first", normalize=False), states[0], atol=1e-6
        )
        np.testing.assert_allclose(refold.embed(self.folder, texts), found, atol=1e-1)
        np.testing.assert_allclose(
            self.encoder.embed(texts[0], pooling="last", normalize=False), states[-1], atol=1e-6
        )
        np.testing.assert_allclose(
            self.encoder.embed(texts[0], pooling="max", normalize=False), states.max(axis=0), atol=1e-6
        )
        with self.assertRaises(refold.UsageError):
            self.encoder.embed(texts, pooling="median")

    def test_embeddings_follow_the_folder(self):
        sentence = os.path.join(FIXTURES, "sentence")
        with open(os.path.join(sentence, "golden.json"), encoding="utf-8") as file:
            expected = json.load(file)
        vocabulary = os.path.join(FIXTURES, "tokenizers", "wordpiece_bert_cased")
        for name in ["tokenizer.json", "tokenizer_config.json"]:
            shutil.copy(os.path.join(vocabulary, name), self.folder)
        shutil.copytree(os.path.join(sentence, "dense"), self.folder, dirs_exist_ok=True)
        found = refold.Encoder(self.folder, threads=1, f32=True).embed(expected["texts"])
        np.testing.assert_allclose(found, expected["embeddings"]["dense"], atol=1e-5)


if __name__ == "__main__":
    unittest.main()

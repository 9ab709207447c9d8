"""A decoder of refold's in PyTorch: the same function with gradients, and its sharing kept.

>>> import refold.torch, torch
>>> model = refold.torch.load("small.gguf")
>>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
>>> logits = model(tokens)                                    # [B, T] -> [B, T, V]
>>> torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
>>> optimizer.step()
>>> model.save("trained.gguf")

Every stored tensor is one Parameter, however many slots of however many layers use it: what is shared is trained
once and stays shared. What is not covered is refused by name (refold.UnsupportedError).
"""

from ._experts import SlotExperts
from ._layer import Cache, DecoderLayer
from ._model import Model, load
from ._weights import SlotLinear, StoredTensors, Table

__all__ = ["Cache", "DecoderLayer", "Model", "SlotExperts", "SlotLinear", "StoredTensors", "Table", "load"]

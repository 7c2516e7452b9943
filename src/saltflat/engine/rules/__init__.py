"""How each kind of layer uses its weights: one file a kind, each registering its torch functions.

A new rule is one file with ``@rule(torch.some_function)`` and one line here.
"""

from saltflat.engine.rules import (
    activation,
    attention,
    convolution,
    direct,
    embedding,
    linear,
    norm,
    pooling,
    recurrent,
)

__all__ = [
    "activation", "attention", "convolution", "direct", "embedding", "linear", "norm", "pooling", "recurrent",
]  # fmt: skip

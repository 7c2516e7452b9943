"""Per-unit gradients: clipped, summed, and never kept."""

from saltflat.engine.clipped_sum import ClippedSum, clipped_sum

__all__ = ["ClippedSum", "clipped_sum"]

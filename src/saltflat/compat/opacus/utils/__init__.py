"""Helpers of a training loop."""

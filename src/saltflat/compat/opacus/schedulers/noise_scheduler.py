"""The path under which Opacus has these schedules."""

from saltflat.compat.opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise

__all__ = ["ExponentialNoise", "LambdaNoise", "StepNoise"]

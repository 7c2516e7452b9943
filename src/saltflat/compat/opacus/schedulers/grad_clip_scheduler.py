"""The path under which Opacus has these schedules."""

from saltflat.compat.opacus.schedulers import ExponentialGradClip, LambdaGradClip, StepGradClip

__all__ = ["ExponentialGradClip", "LambdaGradClip", "StepGradClip"]

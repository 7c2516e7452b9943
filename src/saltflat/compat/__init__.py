"""Interfaces that people know from elsewhere, on saltflat's engine, noise and accounting."""

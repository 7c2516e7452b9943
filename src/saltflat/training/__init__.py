"""Where plans become runs: building the parts, stepping, fitting, evaluating."""

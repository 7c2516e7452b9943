"""What a run leaves behind: ledger, certificate, weights, metrics."""

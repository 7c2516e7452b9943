"""What methods do with releases: ascents, averagings, optimizers. Post-processing, and free."""

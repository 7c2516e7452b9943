"""The private mechanism's two sources of chance: which rows join a batch, and the noise on their sum."""

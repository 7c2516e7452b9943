"""How fast and how large a private step is, beside the alternatives: what ``saltflat bench`` measures.

A bench is a list of tasks. Each of them measures one thing and returns plain numbers, which are kept as they
come; goals, tables and pictures are made of these numbers alone. Nothing here is imported by training.
"""

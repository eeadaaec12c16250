"""Whether the code of two commits makes the same models: `python -m tools.same_bytes BASE [FOLDER ...]`."""

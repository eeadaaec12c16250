"""Finds out why a quantized model differs from the float model."""

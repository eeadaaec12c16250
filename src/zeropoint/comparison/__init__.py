"""Compares a float model with its quantized version, op by op."""

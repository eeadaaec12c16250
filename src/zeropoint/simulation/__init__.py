"""Bit-exact simulation of a quantized model: the integers that the runtimes' kernels compute, in NumPy."""

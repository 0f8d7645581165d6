"""Kernels of our own for CUDA devices, compiled by Triton: all but this page needs it to be imported."""

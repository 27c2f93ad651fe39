"""Runs on a CUDA card: NVIDIA's, or the stand-in of tests/cuda_standin."""

"""Failures of llama.cpp, made to order: only in a build with PYLLMCANCEL_FAULTS, see ``tools/test_faults.py``."""

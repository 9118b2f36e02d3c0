"""Benchmarks: what a cancel, a step and a whole server cost, measured."""

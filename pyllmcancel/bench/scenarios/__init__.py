"""Scenarios in which a server is measured. Each is a module with options, and ``run(bench, options)``, which returns a
`Run`.
"""

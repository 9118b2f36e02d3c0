"""Scenarios in which a server is measured, one module each: options, and ``run(bench, options)`` that gives a `Run`."""

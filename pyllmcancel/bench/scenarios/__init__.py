"""What is done to a server, one module each: options, and ``run(bench, options)`` that gives a `Run`."""

"""End-to-end acceptance: what the server promises about cancels, tried on a real process over real sockets.

``python -m bench.scenarios --help`` lists the scenarios; each module has one.
"""

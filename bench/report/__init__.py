"""From the parts of a side-by-side run to bench/REPORT.md: tables, plots, and which aims were met.

    python -m bench.report build/bench

Every figure is computed from the parts' JSON. `results` finds values in them, `sections` and `pictures` show them,
`aims` judges them. What was tried where an aim was missed is prose, and stands in remarks.toml. The tables of
``python -m bench.native`` are added where its files lie in the same folder.
"""

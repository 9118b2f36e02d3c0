"""Models to measure with: real shapes and random weights, since speed does not depend on what a model knows."""

"""Pictures and sounds of requests: their sources, and the checks before they are decoded."""

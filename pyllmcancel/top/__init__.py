"""``pyllmcancel top``: a server's present activity in the terminal, and cancels of its requests."""

"""Scheduling: the choice of requests whose tokens the next step computes, and of the places of prefixes."""

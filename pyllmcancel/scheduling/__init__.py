"""Scheduling: which request's tokens the next step computes, and where prefixes are kept."""

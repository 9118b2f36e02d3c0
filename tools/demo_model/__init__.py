"""Trains and exports the small model that ships in `pyllmcancel/models/`."""

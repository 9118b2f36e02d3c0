"""Delays of other clients beside one client's hostile bodies and connections."""

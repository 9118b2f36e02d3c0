"""Guesses of the tokens that come next, which a decode step checks several at a time. No guess decides an answer."""

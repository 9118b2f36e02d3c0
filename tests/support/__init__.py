"""Helpers that tests share: makers of inputs, fakes and fixtures' helpers; nothing here is collected as a test."""

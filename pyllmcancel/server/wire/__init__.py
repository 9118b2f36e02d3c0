"""The fields of bodies and answers that dialects share."""

"""Answers that go on when their reader leaves, and can be taken up again."""

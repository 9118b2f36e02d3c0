"""Models that pool: texts in, one vector out for each. They work like the engine, with texts in place of choices."""

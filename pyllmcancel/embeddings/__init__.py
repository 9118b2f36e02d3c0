"""Models that pool: texts in, one vector out for each. As the engine, with texts in the place of choices."""

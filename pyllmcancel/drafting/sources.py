"""The names of the sources of drafts, the likeliest first."""

PAST = "past"  # the owner's recent answers
PREDICTION = "prediction"  # what the request itself expects
NGRAM = "ngram"  # the prompt and the answer so far
MODEL = "model"  # a draft model
HEADS = "heads"  # the model's own, which guess further tokens
SOURCES = (PAST, PREDICTION, NGRAM, MODEL, HEADS)  # of matches that are equally long, the first one's is taken

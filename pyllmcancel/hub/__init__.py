"""Models of the Hugging Face hub: which file a name means, the hub's cache on disk, and downloads that go on.

Only `client` needs `huggingface_hub` (``pip install 'pyllmcancel[hub]'``): what lies in the cache is found without it.
"""

"""Models of the Hugging Face hub: the files that a name means, the hub's cache on disk, and downloads that can be
resumed.

Only `client` needs `huggingface_hub` (``pip install 'pyllmcancel[hub]'``): cached models are found without it.
"""

"""``pyllmcancel top``: what a server does at this moment, in the terminal, and its requests' cancels."""

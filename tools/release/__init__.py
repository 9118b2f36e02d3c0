"""A release: ``python -m tools.release VERSION``, in the checkout's root; CONTRIBUTING.md says when and how."""

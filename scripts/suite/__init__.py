"""The drawing tasks of suite `local-2d-v1`: what is asked, what is right, and how the oracle gets there."""

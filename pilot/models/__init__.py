"""Who can play: models behind one protocol, chosen by provider in `registry.py`."""

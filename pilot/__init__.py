"""Plays one rollout. Start reading in `rollout.py`."""

"""Runs on the CAD host and moves its mouse and keyboard: lease, reset, actions, frames, evaluator; drivers."""

"""What a pilot says while it plays: into its row, into the batch's sum, and as a line when somebody must act."""

from __future__ import annotations

from datetime import datetime

from supervisor.launch import Progress
from supervisor.seat import Seat


class ProgressNotes:
    """Hears the progress of one rollout."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        # Since when it had been waiting as an alarm was told: one line for each wait, however often it is tried again.
        self._alarmed_since: datetime | None = None

    def note(self, progress: Progress) -> None:
        """Keep it, and tell people when an alarm begins and when the model answers again."""
        seat, waiting = self._seat, progress.waiting
        seat.book.note_progress(
            seat.rollout_id,
            turns=progress.turn,
            actions_used=progress.actions_used,
            cost_usd=progress.cost_usd,
            requests_of_unknown_cost=progress.requests_of_unknown_cost,
            waiting=waiting,
        )
        if waiting is None:
            if self._alarmed_since is not None:
                seat.say(f"{seat.rollout_id}: the model answers again")
            self._alarmed_since = None
        elif waiting.alarm is not None and waiting.since != self._alarmed_since:
            self._alarmed_since = waiting.since
            seat.say(f"{seat.rollout_id}: ALARM: {waiting.alarm}")
        seat.costs.note(seat.rollout_id, progress.cost_usd)

"""Every path of the output tree."""

from __future__ import annotations

from pathlib import Path

from contract.run_dir import BatchDir, RunDir


def test_the_tree_is_the_operator_contracts() -> None:
    """Other programs look for these names."""
    batch = BatchDir(Path("out"))
    run = batch.rollout("openai-5-6-sol")
    evaluation = run.evaluation
    paths = [
        batch.state,
        batch.config,
        batch.hosts,
        batch.log("openai-5-6-sol"),
        run.run_state,
        run.checkpoint,
        run.reference,
        run.frame(0),
        run.frame(1234567),
        run.model_turns,
        run.model_turn_summaries,
        run.input_receipts,
        run.events,
        run.frame_events,
        run.attempt("dwg"),
        run.result,
        evaluation.status,
        evaluation.metadata,
        evaluation.render,
        evaluation.score,
        evaluation.diff,
        evaluation.vision_judge,
        evaluation.judge_request,
        evaluation.judge_responses,
        evaluation.judge_score,
        evaluation.rescore(1).score,
    ]

    assert [
        "out/batch-state.json",
        "out/batch-config.json",
        "out/hosts.jsonl",
        "out/logs/openai-5-6-sol.log",
        "out/rollouts/openai-5-6-sol/run-state.json",
        "out/rollouts/openai-5-6-sol/resume-checkpoint.json",
        "out/rollouts/openai-5-6-sol/reference.png",
        "out/rollouts/openai-5-6-sol/frames/000000.png",
        "out/rollouts/openai-5-6-sol/frames/1234567.png",
        "out/rollouts/openai-5-6-sol/model_turns.jsonl",
        "out/rollouts/openai-5-6-sol/model_turn_summaries.jsonl",
        "out/rollouts/openai-5-6-sol/input_receipts.jsonl",
        "out/rollouts/openai-5-6-sol/events.json",
        "out/rollouts/openai-5-6-sol/frame_events.json",
        "out/rollouts/openai-5-6-sol/attempt.dwg",
        "out/rollouts/openai-5-6-sol/result.json",
        "out/rollouts/openai-5-6-sol/evaluation/status.json",
        "out/rollouts/openai-5-6-sol/evaluation/metadata.json",
        "out/rollouts/openai-5-6-sol/evaluation/render.png",
        "out/rollouts/openai-5-6-sol/evaluation/score.json",
        "out/rollouts/openai-5-6-sol/evaluation/diff.png",
        "out/rollouts/openai-5-6-sol/evaluation/vision-judge",
        "out/rollouts/openai-5-6-sol/evaluation/vision-judge/request.json",
        "out/rollouts/openai-5-6-sol/evaluation/vision-judge/responses.json",
        "out/rollouts/openai-5-6-sol/evaluation/vision-judge/score.json",
        "out/rollouts/openai-5-6-sol/evaluation/rescored/0001/score.json",
    ] == [str(path) for path in paths]


def test_a_run_folder_knows_its_rollout() -> None:
    """By its name alone."""
    assert "r-1" == RunDir(Path("out/rollouts/r-1")).rollout_id

"""The optimizer's state on disk: DeepSpeed's shards and a note of what they belong to.

engine -> <folder>/deepspeed + checkpoint.json -> engine; with another number of ranks by way of the universal form

A rank writes what it holds, which costs nothing extra. Only where another number of ranks reads are the shards turned
into DeepSpeed's universal form (one file a parameter and state, `<folder>/universal`), once.
"""

from __future__ import annotations

import argparse
import logging
import shutil
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from data_contracts.errors import UserError
from models.policy import publish_folder
from tasks.training import distributed

log = logging.getLogger(__name__)

_NOTE = "checkpoint.json"
_SHARDS = "deepspeed"
_UNIVERSAL = "universal"


class Note(BaseModel):
    """What a checkpoint belongs to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    """of the policy whose weights the state goes with"""
    processes: int
    zero_stage: int
    skipped_in_a_row: int
    progress: dict[str, Any] | None = None
    """of an iteration that this checkpoint stands in the middle of"""


def write_checkpoint(engine: Any, folder: Path, note: Note) -> None:
    """Write the DeepSpeed engine's state and the note, so that `folder` is there whole or not at all. On every rank."""
    scratch = folder.with_name(f".{folder.name}.next")
    if distributed.rank() == 0:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
    distributed.share(None)
    engine.save_checkpoint(str(scratch), tag=_SHARDS, save_latest=False, exclude_frozen_parameters=True)
    distributed.gather(None)
    if distributed.rank() == 0:
        (scratch / _NOTE).write_text(note.model_dump_json())
        publish_folder(scratch, folder)


def read_note(folder: Path) -> Note:
    """Return the note beside a checkpoint's shards; a folder without one, or another version's, is a UserError."""
    file = folder / _NOTE
    if not file.is_file():
        raise UserError(f"{folder} is no checkpoint (it has no {_NOTE}): train from the policy without one.")
    try:
        return Note.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(f"{file} is another version's: delete {folder}, the optimizer then starts afresh.") from error


def load_shards(engine: Any, folder: Path, note: Note) -> None:
    """Restore the DeepSpeed engine's state, whatever the number of ranks that wrote it. On every rank.

    Shards of another ZeRO stage are a UserError: DeepSpeed lays their optimizer state out differently.
    """
    stage = engine.zero_optimization_stage()
    if note.zero_stage != stage:
        raise UserError(
            f"{folder} was written under ZeRO-{note.zero_stage}: set training.zero_stage to it, not {stage}."
        )
    universal = note.processes != distributed.world_size()
    if universal and distributed.rank() == 0 and not (folder / _UNIVERSAL).is_dir():
        _convert(folder)
    distributed.share(None)
    # DeepSpeed reads this flag only while it loads; as a setting it would bind the engine to one form for its life
    engine._config.load_universal_checkpoint = universal
    tag = _UNIVERSAL if universal else _SHARDS
    loaded, _ = engine.load_checkpoint(str(folder), tag=tag, load_module_strict=False, load_lr_scheduler_states=False)
    if loaded is None:
        raise UserError(f"{folder} holds no DeepSpeed state: delete it and load the policy without a checkpoint.")


def _convert(folder: Path) -> None:
    """Write `<folder>/universal` from the shards, by DeepSpeed's own converter."""
    from deepspeed.checkpoint import ds_to_universal

    scratch = folder / f".{_UNIVERSAL}.next"
    shutil.rmtree(scratch, ignore_errors=True)
    options = argparse.Namespace(
        input_folder=str(folder / _SHARDS),
        output_folder=str(scratch),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    ds_to_universal.main(options)
    (folder / "latest_universal").unlink()
    publish_folder(scratch, folder / _UNIVERSAL)
    log.info("%s was turned into DeepSpeed's universal form for %d ranks", folder, distributed.world_size())

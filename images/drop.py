"""Drop folders: where hosts leave snapshots and images of servers, if they may only read the image store.

Each host has one of its own, and only it writes there. A super conductor moves into the store what an operation has made, and only
under the name of that operation. Everything else in a drop folder is never looked at.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from images.store import FolderStore
from objects import errors
from objects.task import NewImage, StoredContent


class DropFolders:
    """The drop folders of all hosts, side by side in one folder on the file system of the store."""

    def __init__(self, folder: Path, store: FolderStore) -> None:
        self._folder = folder
        self._store = store

    def take_from_host(self, host: str, image_id: str, image: NewImage | None, content: StoredContent | None) -> None:
        """Move what this host has made into the store. ``image`` None: it is a snapshot. Nothing there: it was taken before.

        Raises errors.ServiceUnavailable, and errors.Invalid for an image that is not safe.
        """
        if image is None:
            self._store.take_snapshot(self._folder, host, image_id)
        else:
            self._store.take_image(self._folder, host, image_id, image, content)

    def remove_leftovers(self, image_id: str) -> None:
        """Remove what hosts have left of an operation that did not end well. Raises errors.ServiceUnavailable."""
        for entry in self._folder.iterdir() if self._folder.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                drop_store = FolderStore(entry)
                drop_store.remove_snapshot(image_id)
                with suppress(errors.NotFound):
                    drop_store.delete(image_id)


def open_drop(folder: str, store: FolderStore | None) -> DropFolders | None:
    """``folder``: as ``[images] drop_folder`` has it. None if that is empty, or if there is no store."""
    return DropFolders(Path(folder), store) if folder and store is not None else None

"""Where an agent gets the images that servers are built from: the folder store first, then Glance."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from oslo_config import cfg

from images import opts
from images.record import ImageRecord
from images.store import open_store
from objects import errors

_HELP = "Operators add images with 'superconductor image add', or name the image service in [glance]."


class ImageSource(Protocol):
    """Images that may be asked for from several threads at once.

    Both methods raise errors.NotFound; errors.ServiceUnavailable if the answer is not known now; errors.Invalid for an image that
    no host can use; errors.Forbidden if the image service refuses the agent's login.
    """

    def get_record(self, image_id: str) -> ImageRecord:
        """What is known of the image."""
        ...

    def read_content(self, image_id: str) -> Generator[bytes, None, None]:
        """Its bytes. They may be others than the record says: compare size and hash. Errors may also come in the middle."""
        ...


class ImageSources:
    """Several sources as one. The first that has an image counts; one that cannot be asked hides those after it."""

    def __init__(self, sources: Sequence[ImageSource]) -> None:
        self._sources = sources

    def get_record(self, image_id: str) -> ImageRecord:
        return self._find_source(image_id)[1]

    def read_content(self, image_id: str) -> Generator[bytes, None, None]:
        return self._find_source(image_id)[0].read_content(image_id)

    def _find_source(self, image_id: str) -> tuple[ImageSource, ImageRecord]:
        for source in self._sources:
            try:
                return source, source.get_record(image_id)
            except errors.NotFound:
                continue
        raise errors.NotFound(f"Image {image_id[:80]} does not exist. {_HELP}")


def open_source(conf: cfg.ConfigOpts, folder: str | None = None) -> ImageSource:
    """The images of ``[images] folder`` and ``[glance]``. Nothing is connected to yet.

    ``folder``: instead of ``[images] folder``. Raises errors.Misconfigured for a ``[glance]`` that cannot work.
    """
    sources: list[ImageSource] = []
    if store := open_store(opts.read_folder(conf) if folder is None else folder):
        sources.append(store)
    if opts.has_glance(conf):
        from images.glance import open_glance  # its library is an extra, which only these agents need

        sources.append(open_glance(conf))
    return ImageSources(sources)

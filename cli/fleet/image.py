"""``superconductor image``: images in the image store that servers are built from."""

from __future__ import annotations

import argparse
import hashlib
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cli.shared.base import (
    ActionShow,
    Admin,
    AdminLister,
    AdminShow,
    Row,
    Table,
    add_properties,
    at_least,
    checked_name,
    format_properties,
)
from cli.shared.deployment import CONFIG_VARIABLE, STATE_VARIABLE, Deployment
from objects import errors

if TYPE_CHECKING:  # as in cli.shared.deployment
    from images.record import ImageRecord
    from images.store import FolderStore


class ImageAdd(ActionShow):
    """Copy a disk image of format raw or qcow2 into the image store. Refused: other formats, encrypted images, backing files.

    Example: superconductor image add debian-12.qcow2 --name debian-12 --min-disk 3
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        least = partial(at_least, 0)
        parser.add_argument("file", metavar="FILE", type=Path)
        parser.add_argument("--name", metavar="NAME", type=checked_name, required=True)
        parser.add_argument("--id", metavar="UUID", type=_parse_uuid, help="its id (default: a new UUID)")
        parser.add_argument(
            "--disk-format", choices=("raw", "qcow2"), help="refuse it if it has another one (default: as it looks)"
        )
        parser.add_argument("--min-disk", metavar="GIB", type=least, default=0, help="least root disk of a flavor (default: 0)")
        parser.add_argument("--min-ram", metavar="MIB", type=least, default=0, help="least memory of a flavor (default: 0)")
        add_properties(parser, "property of the image")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        store = _open_store(self.deployment)
        added = store.add_image(
            parsed_args.file,
            name=parsed_args.name,
            image_id=parsed_args.id or str(uuid.uuid4()),
            disk_format=parsed_args.disk_format,
            min_disk=parsed_args.min_disk,
            min_ram=parsed_args.min_ram,
            properties=dict(parsed_args.properties),
        )
        if _has_database(self.deployment):
            _write_hash(self.deployment, added)
        elif self.deployment.state_folder is None:  # the start of a standalone records it
            self.warn_user(
                f"No API database is named, so nobody sees image {added.id} in lists: run 'superconductor image record'."
            )
        return _show_image(added)


class ImageList(AdminLister):
    """List the images that were added. Sizes are in bytes.

    Example: superconductor image list -f json
    """

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        listed = _open_store(self.deployment).list_images()
        return ("ID", "Name", "Format", "Size", "Virtual Size", "Min Disk", "Min RAM", "Created"), [
            (i.id, i.name, i.disk_format, i.size, i.virtual_size, i.min_disk, i.min_ram, i.created_at) for i in listed
        ]


class ImageShow(AdminShow):
    """Show one image.

    Example: superconductor image show debian-12
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("image", metavar="IMAGE", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Row]:
        return _show_image(_find_image(_open_store(self.deployment), parsed_args.image))


class ImageDelete(Admin):
    """Delete images. Servers that were built from them are untouched.

    Example: superconductor image delete debian-11
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("images", metavar="IMAGE", nargs="+", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        store = _open_store(self.deployment)
        self.do_each(parsed_args.images, lambda reference: self._delete(store, reference))

    def _delete(self, store: FolderStore, reference: str) -> None:
        try:
            image_id = str(uuid.UUID(reference))
            store.delete(image_id)  # without its record, which may be unreadable
        except (ValueError, errors.NotFound):
            image_id = _find_image(store, reference).id
            store.delete(image_id)
        if _has_database(self.deployment):
            from db.api.servers import server_images

            self.deployment.api_database.write(server_images.forget_images, [image_id])


class ImageRecordHashes(AdminLister):
    """Have the API database know images that an older release, or a command without it, has stored. It lists no others.

    What is in the image store now counts as right: hosts refuse other contents from now on. Without an image: all whose hashes are
    not in the API database. Their contents are read, and must fit their records.
    Example: superconductor image record
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("images", metavar="IMAGE", nargs="*", help="id or name")

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        from conductor.image_rows import missing_images

        store = _open_store(self.deployment)
        recorded: list[ImageRecord] = []
        named = {_find_image(store, item).id for item in parsed_args.images}
        missing = missing_images(self.deployment.api_database, store)
        due = [item for item in missing if not named or item[0].id in named]
        self.do_each(due, lambda image: recorded.append(self._record_hash(store, *image)))
        return ("ID", "Name", "Size", "SHA-512"), [(item.id, item.name, item.size, item.hash_value) for item in recorded]

    def _record_hash(self, store: FolderStore, image: ImageRecord, project_id: str) -> ImageRecord:
        digest = hashlib.sha512()
        for chunk in store.read_content(image.id):
            digest.update(chunk)
        if digest.hexdigest() != image.hash_value:
            raise errors.Conflict(f"The content of image {image.id} does not fit its record: delete it, and add it again.")
        _write_hash(self.deployment, image, project_id)
        return image


def _open_store(deployment: Deployment) -> FolderStore:
    """Raises Misconfigured if there is none."""
    if deployment.state_folder is not None and not deployment.state_folder.is_dir():
        raise errors.Misconfigured(f"{deployment.state_folder}: there is no such folder; 'superconductor standalone' makes one")
    store = deployment.image_store
    if store is None:
        raise errors.Misconfigured(
            "No image store is named: give --state DIR, or a --config-file with 'folder' in [images]"
            f" (environment: {STATE_VARIABLE}, {CONFIG_VARIABLE})"
        )
    return store


def _find_image(store: FolderStore, reference: str) -> ImageRecord:
    images = store.list_images()
    matching = [image for image in images if image.id == reference] or [image for image in images if image.name == reference]
    if not matching:
        raise errors.NotFound(f"No image has the id or name {reference!r}; see 'superconductor image list'.")
    if len(matching) > 1:
        raise errors.Conflict(f"Several images are named {reference!r}: give an id, {' or '.join(image.id for image in matching)}.")
    return matching[0]


def _has_database(deployment: Deployment) -> bool:
    """Whether there is an API database: images may be added before there is one."""
    if deployment.state_folder is not None:
        return (deployment.state_folder / "api.db").exists()
    try:
        return bool(deployment.api_url)
    except errors.Misconfigured:
        return False


def _write_hash(deployment: Deployment, image: ImageRecord, project_id: str = "") -> None:
    from db.api.servers import images

    deployment.api_database.write(images.record_hash, image.to_stored(project_id))


def _parse_uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID") from None


def _show_image(image: ImageRecord) -> tuple[tuple[str, ...], Row]:
    names = ("id", "name", "format", "size", "virtual_size", image.hash_algo, "min_disk", "min_ram", "properties", "created_at")
    return names, (
        image.id,
        image.name,
        image.disk_format,
        image.size,
        image.virtual_size,
        image.hash_value,
        image.min_disk,
        image.min_ram,
        format_properties(image.properties),
        image.created_at,
    )

"""Images, networks and flavors as users name them. The API itself takes flavors by name; images and networks only by id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cli.shared.http import UUID, ApiClient
from objects import errors


def image_id(client: ApiClient, reference: str) -> str:
    """The id of the image with this id or name. Raises NotFound, and Conflict where several have the name."""
    if UUID.fullmatch(reference):
        return reference
    try:
        ids = [str(image["id"]) for image in client.list_images(reference)]
    except (errors.NotFound, errors.Forbidden, errors.Invalid) as refusal:
        raise errors.NotFound(f"Image {reference!r} cannot be found by name, so give its id. The API says: {refusal}") from None
    if not ids:
        raise errors.NotFound(
            f"No image is named {reference!r}: 'superconductor image list' shows those with names; all others go by their ids."
        )
    if len(ids) > 1:
        raise errors.Conflict(f"{len(ids)} images are named {reference!r}: give an id, {' or '.join(sorted(ids))}.")
    return ids[0]


def network_id(client: ApiClient, reference: str) -> str:
    """The id of the network with this id or name, which is unique. Raises NotFound with those that there are."""
    if UUID.fullmatch(reference):
        return reference
    ids = {str(network["name"]): str(network["id"]) for network in client.list_networks()}
    if reference not in ids:
        raise errors.NotFound(f"No network is named {reference!r}. Networks: {', '.join(sorted(ids)) or 'none'}.")
    return ids[reference]


@contextlib.contextmanager
def flavor_named(reference: str) -> Iterator[None]:
    """While inside, a request that is refused because of its flavor says where flavors are listed."""
    try:
        yield
    except errors.Invalid as refusal:
        if "flavorRef: '" not in str(refusal):
            raise
        raise errors.NotFound(f"There is no flavor {reference!r} for this project; see 'superconductor flavor list'.") from None

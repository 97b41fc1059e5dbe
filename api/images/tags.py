"""``/image/v2/images/{id}/tags/{tag}``: tags of an image of a project."""

from __future__ import annotations

from collections.abc import Collection

import falcon

from api.http import call as calls
from api.lookup.project_images import ProjectImages
from objects import errors, text
from objects.stored_image import IMAGE_TAG_LENGTH, IMAGE_TAGS_LIMIT


class ImageTags:
    """An image keeps the tag that it has: to give it once more is no error."""

    def __init__(self, images: ProjectImages) -> None:
        self._images = images

    def on_put(self, req: falcon.Request, resp: falcon.Response, image_id: str, tag: str) -> None:
        """Raises what ``ProjectImages.tag`` and ``checked_tags`` do."""
        checked_tags([tag])
        self._images.add_tag(calls.get_call(req), image_id, tag)
        resp.status = 204

    def on_delete(self, req: falcon.Request, resp: falcon.Response, image_id: str, tag: str) -> None:
        """Raises what ``ProjectImages.untag`` does."""
        self._images.remove_tag(calls.get_call(req), image_id, tag)
        resp.status = 204


def checked_tags(tags: Collection[str]) -> tuple[str, ...]:
    """Each once, in order. Raises errors.Invalid, and errors.OverQuota for too many, as ``db.api.servers.images.add_tag`` does."""
    for tag in tags:
        if not 0 < len(tag) <= IMAGE_TAG_LENGTH or not text.is_safe(tag):
            raise errors.Invalid(
                f"tags: {tag[:40]!r} is no tag, which has 1 to {IMAGE_TAG_LENGTH} characters and no control characters"
            )
    each_once = tuple(sorted(set(tags)))
    if len(each_once) > IMAGE_TAGS_LIMIT:
        raise errors.OverQuota(f"tags: an image has at most {IMAGE_TAGS_LIMIT} tags")
    return each_once

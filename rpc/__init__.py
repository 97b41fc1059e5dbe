"""The bus: transports, codec, typed clients and servers. The only room that knows oslo.messaging.

Importing this package, which happens before any module in it, keeps eventlet out of the process:

* oslo.messaging imports oslo.service, whose default backend still is eventlet: the threading backend is chosen first.
* oslo.utils, which oslo.messaging uses, imports eventlet wherever it is installed, and oslo.service requires it to be. An entry
  None in ``sys.modules`` makes that import fail as if it were not installed; all of these libraries provide for that.

If something else has imported eventlet before, its entry is left alone: a module cannot be unloaded.
"""

from __future__ import annotations

import sys

sys.modules.setdefault("eventlet", None)  # type: ignore[arg-type]  # None is how the import system is told "not there"

from oslo_service import backend  # noqa: E402 - after the line above

backend.init_backend(backend.BackendType.THREADING)

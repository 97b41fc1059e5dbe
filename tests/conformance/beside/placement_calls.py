"""Runs in an environment of Placement: answers calls of its API that come as lines of JSON, ``[method, path, body]``."""

from __future__ import annotations

import json
import sys

import webob
from oslo_config import cfg
from placement import conf as placement_conf
from placement import db_api, deploy

HEADERS = {"x-auth-token": "admin", "openstack-api-version": "placement 1.36", "content-type": "application/json"}


def main(path: str) -> None:
    conf = cfg.ConfigOpts()
    placement_conf.register_opts(conf)
    conf([], project="placement", default_config_files=[path])
    db_api.configure(conf)
    app = deploy.loadapp(conf)
    for line in sys.stdin:
        method, url, body = json.loads(line)
        request = webob.Request.blank(url, method=method, headers=HEADERS)
        if body is not None:
            request.body = json.dumps(body).encode()
        response = request.get_response(app)
        print(json.dumps([response.status_int, response.text]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

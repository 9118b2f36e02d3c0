"""The balancer's ConfigMap, made of the command that is written above it, which names what the StatefulSet runs."""

from __future__ import annotations

import io
import os
import shlex
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

import yaml

from pyllmcancel.cli import main
from tests.deploy.recipes import manifest

HEADER = """\
# HAProxy's configuration for the servers of server.yaml, written by
#
#   {command} \\
#     | kubectl -n {namespace} create configmap pyllmcancel-balancer --from-file=haproxy.cfg=/dev/stdin \\
#         --dry-run=client -o yaml
#
# In another namespace or cluster domain the names are others, and with more replicas more: write it again.
"""


def command() -> str:
    """Return the command that writes HAProxy's configuration for the present StatefulSet."""
    servers = manifest("StatefulSet", "pyllmcancel")
    name, spec = servers["metadata"]["name"], servers["spec"]
    domain = f"{spec['serviceName']}.{servers['metadata']['namespace']}.svc.cluster.local"
    (port,) = (one["containerPort"] for one in spec["template"]["spec"]["containers"][0]["ports"])
    places = [f"{name}-{i}={name}-{i}.{domain}:{port}" for i in range(spec["replicas"])]
    return " ".join(
        [
            "pyllmcancel cluster haproxy --no-look --dns --host '*'",
            *(f"\\\n#     --replica {place}" for place in places),
        ]
    )


def written() -> str:
    """The whole file, as it should be."""
    _, *arguments = shlex.split(command().replace("\\\n# ", ""))
    out = io.StringIO()
    # Not checked: its names can be looked up in the cluster only.
    with patch.dict(os.environ, HAPROXY="/nowhere/haproxy"), redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert main(arguments) == 0
    namespace = manifest("StatefulSet", "pyllmcancel")["metadata"]["namespace"]
    shown = yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "pyllmcancel-balancer", "namespace": namespace},
        },
        sort_keys=False,
    )
    indented = "".join(f"    {line}\n" if line else "\n" for line in out.getvalue().splitlines())
    return HEADER.format(command=command(), namespace=namespace) + shown + "data:\n  haproxy.cfg: |\n" + indented

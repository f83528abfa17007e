# SPDX-License-Identifier: Apache-2.0
"""Certificates that sign themselves, made by the openssl of the machine."""

import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

needs_openssl = pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl here")


def run(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


# For `openssl ca`: `openssl x509` takes dates in the past before 3.4 only as -days, after 3.4 not so.
CONFIG = """[ca]
default_ca = own
[own]
database = {folder}/{name}.issued
new_certs_dir = {folder}
default_md = sha256
rand_serial = yes
policy = policy
x509_extensions = extensions
[policy]
commonName = supplied
[extensions]
subjectAltName = DNS:localhost,IP:127.0.0.1
"""


class Certificate:
    """In folder: NAME.pem and NAME.key, for localhost and 127.0.0.1. It ends so many days from now."""

    def __init__(self, folder, name="server", days=30):
        self.path, self.key = folder / f"{name}.pem", folder / f"{name}.key"
        request, config = folder / f"{name}.csr", folder / f"{name}.cnf"
        config.write_text(CONFIG.format(folder=folder, name=name))
        (folder / f"{name}.issued").touch()
        now = datetime.now(UTC)
        begin, end = (f"{now + timedelta(days=at):%Y%m%d%H%M%SZ}" for at in (min(days, 0) - 1, days))
        run("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", self.key, "-out", request, "-subj", f"/CN={name}")
        run("ca", "-config", config, "-batch", "-notext", "-selfsign", "-in", request,
            "-keyfile", self.key, "-out", self.path, "-startdate", begin, "-enddate", end)

    def flags(self):
        return {"tls_cert": self.path, "tls_key": self.key}

    def context(self):
        """Of a client that trusts this certificate alone."""
        return ssl.create_default_context(cafile=self.path)

    def der(self):
        return ssl.PEM_cert_to_DER_cert(self.path.read_text())

    def copy_over(self, other):
        """As a renewal does it: the files of the other become these."""
        for source, target in ((self.path, other.path), (self.key, other.key)):
            fresh = target.with_suffix(".fresh")
            shutil.copy(source, fresh)
            fresh.replace(target)
